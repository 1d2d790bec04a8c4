// A model's forward pass: operations in order, bound once to the buffers they read and write, and run by one team a step.
#pragma once
#include <array>
#include <atomic>
#include <deque>
#include <string>
#include <variant>
#include <vector>

#include "barrier.h"
#include "kernels.h"

namespace octavo {

// The arena and how blocks lie in it.
struct ArenaInfo {
  uint8_t* base = nullptr;
  int num_blocks = 0;
  int64_t block_bytes = 0, page_bytes = 0;
  int pages_per_block = 0;
  DType dtype = DType::f32;
};

// What bounds a batch; every batch is checked against these before anything runs.
struct Limits {
  int max_tokens, max_logit_rows, max_positions, vocab_size;
};

// A step as the caller gives it; see octavo/kernels/executor.py.
struct BatchInput {
  const int32_t* token_ids;
  int num_tokens;
  const int32_t *q_start, *start, *row;
  const uint8_t* write;
  int num_seqs;
  const int32_t* tables;
  int table_rows, table_columns;
  bool contiguous;
};

enum class Kind : int { embed, norm, linear, experts, append_kv, attention, copy, count };
constexpr int kKinds = int(Kind::count);
const char* kind_name(Kind kind);

class Program {
 public:
  Program(const Kernels* kernels, ArenaInfo arena, Limits limits, int threads);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Operations are added in order, to the body or to the head.  Their `m`, `batch` and token fields are filled in at each step.
  // All pointers must outlive the program.
  void add(bool head, EmbedArgs op);
  void add(bool head, NormArgs op);
  void add(bool head, LinearArgs op);
  // Its matrices and the arrays of its routing are kept here.
  void add(bool head, ExpertsArgs op, const std::vector<const Matrix*>& up, const std::vector<const Matrix*>& down);
  void add(bool head, AppendArgs op);
  void add(bool head, AttentionArgs op);
  KVLayer layer(int num_kv_heads, int head_dim, int64_t layer_offset) const;

  // Where the head gathers its rows: from the body's hidden rows to its own.
  void set_hidden(const void* from, void* to, int64_t row_bytes);

  // Each throws std::invalid_argument, with the numbers, before anything is written.
  void forward(const BatchInput& batch);
  void logits(const int32_t* rows, int count);
  void copy_blocks(const int32_t* pairs, int count);

  std::array<double, kKinds> seconds() const { return seconds_; }
  int64_t scratch_bytes() const;

 private:
  using Op = std::variant<EmbedArgs, NormArgs, LinearArgs, ExpertsArgs, AppendArgs, AttentionArgs>;
  // Of the mixtures of experts.  They run one after another, so the largest one's arrays serve all.
  struct Routing {
    std::vector<int32_t> chosen, place, begin;
    std::vector<float> shares;
  };
  struct alignas(64) Counter {
    std::atomic<int> value{0};
  };

  void check(const BatchInput& batch) const;
  void check_rows(const int32_t* rows, int count) const;
  void check_copies(const int32_t* pairs, int count) const;
  void derive(const BatchInput& batch);
  void run(std::vector<Op>& ops, int m);
  void bind(Op& op, int m);

  const Kernels* kernels_;
  ArenaInfo arena_;
  Limits limits_;
  int threads_;
  std::vector<Op> body_, head_;
  std::vector<Counter> counters_;
  Barrier barrier_;
  Batch batch_{};
  std::vector<int32_t> seq_of_, position_of_;
  std::vector<float> scratch_;
  Routing routing_;
  std::deque<std::vector<const Matrix*>> experts_;
  const void* hidden_from_ = nullptr;
  void* hidden_to_ = nullptr;
  int64_t hidden_bytes_ = 0;
  std::array<double, kKinds> seconds_{};
};

}  // namespace octavo
