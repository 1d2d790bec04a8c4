// How one attention call is cut into items of work, and where partial results lie.
//
// An item is up to `block_rows` rows (a row: one query token in one query head) of one sequence and one KV head.  Every row's context
// is cut at absolute multiples of kSegment tokens; a segment is summed from nothing, and segments are merged in order.  That is so
// whether one item walks all segments of its rows or (a *split* sequence, where few rows face a long context) an item each does
// them and `attention_merge` puts them together.  So the cut decides who works, never a bit of the result.
#pragma once
#include "abi.h"

namespace octavo {
namespace OCTAVO_PATH {

constexpr int kSegment = 1024;
constexpr int kMaxBlockRows = 48;
constexpr int kMaxBlockFloats = 3072;  // of output sums in a block: they share the first-level cache with a group's K and V

static inline int ceil_div(int64_t a, int64_t b) { return int((a + b - 1) / b); }
static inline int round_up(int a, int b) { return (a + b - 1) / b * b; }

static inline int attention_block_rows(int head_dim) {
  int rows = kMaxBlockFloats / round_up(head_dim, 16) / 6 * 6;
  return rows > kMaxBlockRows ? kMaxBlockRows : rows;
}

// A partial result: sums over V [head_dim up to a multiple of 16], then maximum, weight, and 14 unused.
static inline int attention_record_floats(int head_dim) { return round_up(head_dim, 16) + 16; }

// Scratch with which every sequence that should be split can be.  At most 4 items a thread are big enough to split.  With less
// scratch some are not, which costs balance and nothing else.
static inline int64_t attention_scratch_floats(int head_dim, int64_t max_positions, int threads) {
  return int64_t(4) * threads * attention_block_rows(head_dim) * ceil_div(max_positions, kSegment) * attention_record_floats(head_dim);
}

// One sequence's share of a call.
struct SequenceWork {
  int seq, rows, blocks, first_segment, segments;
  int64_t item_cost, cost;  // of its largest item, and of all of them, in rows * tokens
  bool split;
  int64_t scratch;          // split: where its records start, [kv_head][row][segment]
  int items;
};

struct Item {
  SequenceWork work;
  int kv_head, row, rows;              // rows row ... row + rows - 1 of the sequence's
  int first_segment, last_segment;     // absolute, the last one excluded
};

// Walks the items of a call, the biggest first as far as it matters.  Every thread makes its own walk of the same items.
class AttentionWalk {
 public:
  AttentionWalk(const AttentionArgs& args, int threads)
      : args_(args), threads_(threads), group_(args.num_heads / args.kv.num_kv_heads),
        block_rows_(attention_block_rows(args.kv.head_dim)), record_(attention_record_floats(args.kv.head_dim)) {
    for (int s = 0; s < args.batch->num_seqs; s++) total_ += measure(s).cost;
  }

  int group() const { return group_; }
  int record_floats() const { return record_; }

  // Row r of sequence s sees tokens [from, to).
  int to(int s, int r) const { return args_.batch->start[s] + r / group_ + 1; }
  int from(int s, int r) const {
    int end = to(s, r);
    return args_.window && end > args_.window ? end - args_.window : 0;
  }

  // The item of that index; indices of successive calls must not fall.  False: there are no more.
  bool find(int index, Item& item) {
    while (index >= base_ + work_.items) {
      base_ += work_.items;
      if (!advance()) return false;
    }
    locate(index - base_, item);
    return true;
  }

  // The next split sequence.
  bool next_split(SequenceWork& work) {
    while (advance() && pass_ == 0)
      if (work_.split) {
        work = work_;
        return true;
      }
    return false;
  }

 private:
  SequenceWork measure(int s) const {
    const Batch& b = *args_.batch;
    SequenceWork w = {};
    w.seq = s;
    w.rows = (b.q_start[s + 1] - b.q_start[s]) * group_;
    if (w.rows == 0) return w;
    w.blocks = ceil_div(w.rows, block_rows_);
    w.first_segment = from(s, 0) / kSegment;
    w.segments = ceil_div(to(s, w.rows - 1), kSegment) - w.first_segment;
    int64_t longest = to(s, w.rows - 1) - from(s, w.rows - 1), shortest = to(s, 0) - from(s, 0);
    w.item_cost = longest * (w.rows < block_rows_ ? w.rows : block_rows_);
    w.cost = (longest + shortest) * w.rows * args_.kv.num_kv_heads / 2;
    w.items = args_.kv.num_kv_heads * w.blocks;
    return w;
  }

  // Passes: items above 1/4 of a thread's share, above 1/16, above 1/64, the rest; in each the sequences as they come.
  int pass_of(const SequenceWork& w) const {
    int64_t share = w.item_cost * threads_;
    return share * 4 > total_ ? 0 : share * 16 > total_ ? 1 : share * 64 > total_ ? 2 : 3;
  }

  bool advance() {
    for (; pass_ < 4; pass_++, seq_ = -1)
      while (++seq_ < args_.batch->num_seqs) {
        work_ = measure(seq_);
        if (work_.rows == 0 || pass_of(work_) != pass_) continue;
        if (pass_ == 0 && threads_ > 1 && work_.segments > 1) split();
        return true;
      }
    work_.items = 0;
    return false;
  }

  void split() {
    int64_t floats = int64_t(args_.kv.num_kv_heads) * work_.rows * work_.segments * record_;
    if (scratch_used_ + floats > args_.scratch_floats) return;
    work_.split = true;
    work_.scratch = scratch_used_;
    work_.items *= work_.segments;
    scratch_used_ += floats;
  }

  // Split: segment by segment, so that threads read neighbouring pages.  Else head by head, the longest contexts first.
  void locate(int i, Item& item) const {
    item.work = work_;
    int block;
    if (work_.split) {
      item.kv_head = i % args_.kv.num_kv_heads;
      int rest = i / args_.kv.num_kv_heads;
      block = rest % work_.blocks;
      item.first_segment = work_.first_segment + rest / work_.blocks;
      item.last_segment = item.first_segment + 1;
    } else {
      item.kv_head = i / work_.blocks;
      block = work_.blocks - 1 - i % work_.blocks;
      item.first_segment = work_.first_segment;
      item.last_segment = work_.first_segment + work_.segments;
    }
    item.row = block * block_rows_;
    item.rows = work_.rows - item.row < block_rows_ ? work_.rows - item.row : block_rows_;
  }

  const AttentionArgs& args_;
  int threads_, group_, block_rows_, record_;
  int64_t total_ = 0, scratch_used_ = 0;
  int pass_ = 0, seq_ = -1, base_ = 0;
  SequenceWork work_ = {};
};

}  // namespace OCTAVO_PATH
}  // namespace octavo
