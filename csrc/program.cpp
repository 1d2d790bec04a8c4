// Binding and running; the checks of a batch are in program_check.cpp.
#include "program.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "attention_plan.h"

namespace octavo {

using Clock = std::chrono::steady_clock;

const char* kind_name(Kind kind) {
  static const char* const names[kKinds] = {"embed", "norm", "linear", "experts", "append_kv", "attention", "copy"};
  return names[int(kind)];
}

Program::Program(const Kernels* kernels, ArenaInfo arena, Limits limits, int threads)
    : kernels_(kernels), arena_(arena), limits_(limits), threads_(threads) {
  seq_of_.resize(size_t(limits.max_tokens));
  position_of_.resize(size_t(limits.max_tokens));
}

void Program::add(bool head, EmbedArgs op) { (head ? head_ : body_).push_back(op); }
void Program::add(bool head, NormArgs op) { (head ? head_ : body_).push_back(op); }
void Program::add(bool head, LinearArgs op) { (head ? head_ : body_).push_back(op); }
void Program::add(bool head, ExpertsArgs op, const std::vector<const Matrix*>& up, const std::vector<const Matrix*>& down) {
  experts_.push_back(up), op.up = experts_.back().data();
  experts_.push_back(down), op.down = experts_.back().data();
  const size_t choices = size_t(head ? limits_.max_logit_rows : limits_.max_tokens) * size_t(op.top_k);
  auto grow = [](auto& array, size_t size) { array.resize(std::max(array.size(), size)); };
  grow(routing_.chosen, choices), grow(routing_.place, choices), grow(routing_.shares, choices);
  grow(routing_.begin, size_t(op.num_experts) + 1);
  (head ? head_ : body_).push_back(op);
}
void Program::add(bool head, AppendArgs op) { (head ? head_ : body_).push_back(op); }
void Program::add(bool head, AttentionArgs op) {
  const int64_t floats = portable::attention_scratch_floats(op.kv.head_dim, limits_.max_positions, threads_);
  if (int64_t(scratch_.size()) < floats) scratch_.resize(size_t(floats));
  (head ? head_ : body_).push_back(op);
}

KVLayer Program::layer(int num_kv_heads, int head_dim, int64_t layer_offset) const {
  KVLayer kv{};
  kv.arena = arena_.base;
  kv.block_bytes = arena_.block_bytes, kv.page_bytes = arena_.page_bytes, kv.layer_offset = layer_offset;
  kv.pages_per_block = arena_.pages_per_block, kv.num_kv_heads = num_kv_heads, kv.head_dim = head_dim;
  kv.dtype = arena_.dtype;
  return kv;
}

int64_t Program::scratch_bytes() const {
  const Routing& r = routing_;
  return int64_t(scratch_.size() + r.chosen.size() + r.place.size() + r.begin.size() + r.shares.size()) * 4;
}

void Program::set_hidden(const void* from, void* to, int64_t row_bytes) {
  hidden_from_ = from, hidden_to_ = to, hidden_bytes_ = row_bytes;
}

// ---- one step -----------------------------------------------------------------------------------------------------------------

void Program::bind(Op& op, int m) {
  struct Visitor {
    Program& p;
    int m;
    void operator()(EmbedArgs& a) const {
      a.m = m, a.token_ids = p.batch_.token_ids, a.position_of = p.batch_.position_of;
    }
    void operator()(NormArgs& a) const { a.m = m; }
    void operator()(LinearArgs& a) const { a.m = m; }
    void operator()(ExpertsArgs& a) const {
      a.m = m, a.chosen = p.routing_.chosen.data(), a.place = p.routing_.place.data();
      a.begin = p.routing_.begin.data(), a.shares = p.routing_.shares.data();
    }
    void operator()(AppendArgs& a) const { a.batch = &p.batch_; }
    void operator()(AttentionArgs& a) const {
      a.batch = &p.batch_, a.scratch = p.scratch_.data(), a.scratch_floats = int64_t(p.scratch_.size());
    }
  };
  std::visit(Visitor{*this, m}, op);
}

namespace {

struct Caller {
  const Kernels& kernels;
  Barrier& barrier;
  Team team;
  Kind operator()(const EmbedArgs& a) const { return kernels.embed(a, team), Kind::embed; }
  Kind operator()(const NormArgs& a) const { return kernels.norm(a, team), Kind::norm; }
  Kind operator()(const LinearArgs& a) const { return kernels.linear(a, team), Kind::linear; }
  Kind operator()(const ExpertsArgs& a) const {
    for (auto* part : kernels.experts) {
      if (part != kernels.experts[0]) barrier.wait(team.size);
      part(a, team);
    }
    return Kind::experts;
  }
  Kind operator()(const AppendArgs& a) const { return kernels.append_kv(a, team), Kind::append_kv; }
  Kind operator()(const AttentionArgs& a) const {
    kernels.attention(a, team);
    barrier.wait(team.size);
    return kernels.attention_merge(a, team), Kind::attention;
  }
};

}  // namespace

void Program::run(std::vector<Op>& ops, int m) {
  if (counters_.size() < ops.size()) counters_ = std::vector<Counter>(ops.size());
  for (size_t i = 0; i < ops.size(); i++) {
    bind(ops[i], m);
    counters_[i].value.store(0, std::memory_order_relaxed);
  }
#pragma omp parallel num_threads(threads_)
  {
    const int rank = omp_get_thread_num(), size = omp_get_num_threads();
    Clock::time_point before = Clock::now();
    for (size_t i = 0; i < ops.size(); i++) {
      const Kind kind = std::visit(Caller{*kernels_, barrier_, Team{rank, size, &counters_[i].value}}, ops[i]);
      barrier_.wait(size);
      if (rank == 0) {
        const Clock::time_point after = Clock::now();
        seconds_[size_t(kind)] += std::chrono::duration<double>(after - before).count();
        before = after;
      }
    }
  }
}

void Program::derive(const BatchInput& in) {
  for (int s = 0; s < in.num_seqs; s++)
    for (int i = in.q_start[s]; i < in.q_start[s + 1]; i++) {
      seq_of_[size_t(i)] = s;
      position_of_[size_t(i)] = in.start[s] + i - in.q_start[s];
    }
  batch_ = Batch{in.num_tokens,  in.num_seqs,   in.token_ids,   in.q_start,     in.start,         in.row, in.write, in.tables,
                 in.table_columns, in.contiguous, seq_of_.data(), position_of_.data()};
}

void Program::forward(const BatchInput& batch) {
  check(batch);
  if (batch.num_tokens == 0) return;
  derive(batch);
  run(body_, batch.num_tokens);
}

void Program::logits(const int32_t* rows, int count) {
  check_rows(rows, count);
  if (count == 0) return;
  for (int i = 0; i < count; i++)
    std::memcpy(static_cast<char*>(hidden_to_) + i * hidden_bytes_, static_cast<const char*>(hidden_from_) + rows[i] * hidden_bytes_,
                size_t(hidden_bytes_));
  run(head_, count);
}

void Program::copy_blocks(const int32_t* pairs, int count) {
  check_copies(pairs, count);
  constexpr int64_t kPiece = 64 * 1024;
  const Clock::time_point before = Clock::now();
  const int64_t pieces = (arena_.block_bytes + kPiece - 1) / kPiece;
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (int64_t i = 0; i < count * pieces; i++) {
    const int32_t* pair = pairs + i / pieces * 2;
    const int64_t at = i % pieces * kPiece;
    std::memcpy(arena_.base + pair[1] * arena_.block_bytes + at, arena_.base + pair[0] * arena_.block_bytes + at,
                size_t(std::min(kPiece, arena_.block_bytes - at)));
  }
  seconds_[size_t(Kind::copy)] += std::chrono::duration<double>(Clock::now() - before).count();
}

}  // namespace octavo
