// Paged attention: prefill, chunks, decode, query-only rows and verification in one ragged call (after PagedAttention, Kwon et al.
// 2023, with the online softmax of FlashAttention, Dao et al. 2022, and split contexts as in Flash-Decoding).
//
// What a row undergoes is fixed by its q, its position and the window alone: groups of 64 tokens and segments of 1,024 at absolute
// positions, a chain of multiply-adds in each.  See attention_tile.h for the products, attention_strip.h for the softmax,
// attention_plan.h for who does what.
#include "attention_plan.h"
#include "attention_strip.h"
#include "kernels.h"

#include <initializer_list>
#include <type_traits>

namespace octavo {
namespace OCTAVO_PATH {
namespace {

// One item's rows: their q, and the sums of the current segment and of all segments before it.
template <class S>
struct RowBlock {
  alignas(64) float acc[kMaxBlockFloats];
  alignas(64) float weight[kMaxBlockRows * kLanes];
  alignas(64) float base[kMaxBlockRows + kLanes];
  alignas(64) float merged[kMaxBlockFloats + kMaxBlockRows * 16];  // records
  alignas(64) typename S::Weight q[kMaxBlockFloats];
  int from[kMaxBlockRows], to[kMaxBlockRows];  // tokens that each row sees
  int width;                                   // head_dim up to a multiple of 16

  RowSums sums() { return {base, weight, acc, width}; }
  void clear(int rows) {  // acc is written before it is read
    for (int r = 0; r < rows; r++) {
      base[r] = -INFINITY;
      store(weight + r * kLanes, zero());
    }
  }
};

// A record is the result of the segments so far: sums over V [width], base, weight.
void set_record(float* record, int width, float base, float weight, const float* acc) {
  for (int d = 0; d < width; d += kLanes) store(record + d, load(acc + d));
  record[width] = base;
  record[width + 1] = weight;
}

// Takes one more segment into a record.
void merge_segment(float* record, int width, float base, float weight, const float* acc) {
  const float before = record[width], top = base > before ? base : before;
  const F16 keep = exp2_nonpositive(set1(before - top)), take = exp2_nonpositive(set1(base - top));
  for (int d = 0; d < width; d += kLanes) store(record + d, fma(load(acc + d), take, mul(load(record + d), keep)));
  record[width] = top;
  store_first(record + width + 1, fma(set1(weight), take, mul(set1(record[width + 1]), keep)), 1);
}

int64_t row_offset(const AttentionArgs& a, const Item& item, int group, int row, int64_t ld) {
  int token = a.batch->q_start[item.work.seq] + row / group;
  return token * ld + (item.kv_head * group + row % group) * int64_t(a.kv.head_dim);
}

// y = sums over V / weight.
void write_row(const AttentionArgs& a, int64_t offset, const float* sums, float weight) {
  const F16 share = set1(1.f / weight);
  int dim = a.kv.head_dim, whole = dim / kLanes * kLanes;  // then, perhaps, 8 more
  if (a.q_dtype == DType::f32) {
    float* y = (float*)a.y + offset;
    for (int d = 0; d < whole; d += kLanes) store(y + d, mul(load(sums + d), share));
    if (whole < dim) store_first(y + whole, mul(load(sums + whole), share), 8);
  } else {
    half_t *y = (half_t*)a.y + offset, rest[kLanes];
    for (int d = 0; d < whole; d += kLanes) store_bf16(y + d, mul(load(sums + d), share));
    if (whole == dim) return;
    store_bf16(rest, mul(load(sums + whole), share));
    std::memcpy(y + whole, rest, 16);
  }
}

[[maybe_unused]] void read_q(const AttentionArgs& a, int64_t offset, half_t* q) {
  const half_t* from = (const half_t*)a.q + offset;
  for (int d = 0; d < a.kv.head_dim; d += 8) std::memcpy(q + d, from + d, 16);
}
void read_q(const AttentionArgs& a, int64_t offset, float* q) {
  if (a.q_dtype == DType::f32)
    for (int d = 0; d < a.kv.head_dim; d += 8) std::memcpy(q + d, (const float*)a.q + offset + d, 32);
  else
    for (int d = 0; d < a.kv.head_dim; d++) q[d] = bf16_to_float(((const half_t*)a.q)[offset + d]);
}

// Where the item's head lies in the tiles of group `g`, those that hold tokens [begin, end).
GroupTiles find_tiles(const AttentionArgs& a, const Item& item, int g, int begin, int end) {
  GroupTiles tiles = {};
  const int64_t head_bytes = int64_t(kTile) * a.kv.head_dim * dtype_bytes(a.kv.dtype);
  for (int t = begin > g ? (begin - g) / kTile : 0; t < kGroupTiles && g + t * kTile < end; t++) {
    const uint8_t* page = page_address(a.kv, *a.batch, a.batch->row[item.work.seq], g / kTile + t);
    tiles.k[t] = page + item.kv_head * head_bytes;
    tiles.v[t] = page + (a.kv.num_kv_heads + item.kv_head) * head_bytes;
  }
  return tiles;
}

// With so few rows, K and V are waited for; with more, a group's K and V serve many strips and fetching them ahead doesn't pay.
constexpr int kMemoryBoundRows = 2 * kRows;

// All lines at once, tile after tile, before the group in hand is computed.
void fetch_tiles(const AttentionArgs& a, const GroupTiles& tiles) {
  const int bytes = kTile * a.kv.head_dim * dtype_bytes(a.kv.dtype);
  for (const auto& kind : {tiles.k, tiles.v})
    for (int t = 0; t < kGroupTiles; t++)
      for (int line = 0; kind[t] && line < bytes; line += 64) prefetch_far(kind[t] + line);
}

// Calls f with the number of rows, 1 to R, as a constant.
template <int R = kRows, class F>
inline void with_rows(int rows, F f) {
  if (rows == R) return f(std::integral_constant<int, R>());
  if constexpr (R > 1) with_rows<R - 1>(rows, f);
}

// The strips of an item's rows over tokens [start, stop) of a segment, group by group.
template <class S>
class Strips {
 public:
  Strips(const AttentionArgs& a, const Item& item, RowBlock<S>& block, int start, int stop) : a_(a), item_(item), block_(block) {
    begin_ = block.from[0], end_ = block.to[item.rows - 1];
    start_ = start < begin_ ? begin_ / kGroup * kGroup : start;
    group_ = start_ - kGroup;
    stop_ = stop > end_ ? end_ : stop;
  }

  bool next(Strip<S>& strip) {
    if (row_ == last_ && !next_group()) return false;
    strip.rows = last_ - row_ < kRows ? last_ - row_ : kRows;
    strip.q = block_.q + row_ * a_.kv.head_dim;
    strip.sums = block_.sums().row(row_);
    strip.tiles = &tiles_[group_ / kGroup % 3];
    strip.carry = is_first(row_) && is_first(row_ + strip.rows - 1) ? Carry::nothing : Carry::same;
    for (int r = 0; r < strip.rows; r++) {
      if (strip.carry == Carry::same && is_first(row_ + r)) clear_sums(strip.sums.row(r));
      int from = block_.from[row_ + r] - group_, to = block_.to[row_ + r] - group_;
      strip.from[r] = from > 0 ? from : 0;
      strip.to[r] = to < kGroup ? to : kGroup;
    }
    row_ += strip.rows;
    return true;
  }

 private:
  // Is this the first group of the segment that the row sees?
  bool is_first(int row) const { return group_ == start_ || block_.from[row] >= group_; }
  static void clear_sums(RowSums sums) {
    for (int d = 0; d < sums.ld; d += kLanes) store(sums.acc + d, zero());
  }

  bool next_group() {
    group_ += kGroup;
    if (group_ >= stop_) return false;
    while (block_.to[first_] <= group_) first_++;  // the rows that see some of the group; both ends only grow
    while (last_ < item_.rows && block_.from[last_] < group_ + kGroup) last_++;
    row_ = first_;
    const int n = group_ / kGroup;
    if (group_ == start_) tiles_[n % 3] = find_tiles(a_, item_, group_, begin_, end_);
    tiles_[(n + 1) % 3] = find_tiles(a_, item_, group_ + kGroup, begin_, end_);
    if (item_.rows <= kMemoryBoundRows) fetch_tiles(a_, tiles_[(n + 1) % 3]);
    return true;
  }

  const AttentionArgs& a_;
  const Item& item_;
  RowBlock<S>& block_;
  int begin_, end_, start_, stop_, group_, first_ = 0, last_ = 0, row_ = 0;
  GroupTiles tiles_[3] = {};  // of the group before (a strip of it may be unfinished), of this one, and of the next
};

// Sums tokens [start, stop) of a segment, for the rows that see any of them.  The next strip's scores are computed between a strip's
// softmax and its outputs.
template <class S>
void run_segment(const AttentionArgs& a, const Item& item, RowBlock<S>& block, int start, int stop) {
  const int head_dim = a.kv.head_dim;
  const float scale = a.scale * 1.44269504f;  // powers of 2 instead of e
  auto score = [&](Strip<S>& s) { with_rows(s.rows, [&](auto n) { score_phase<S, n()>(s, head_dim, scale); }); };
  auto softmax = [&](Strip<S>& s) { with_rows(s.rows, [&](auto n) { softmax_phase<S, n()>(s); }); };
  auto output = [&](Strip<S>& s) { with_rows(s.rows, [&](auto n) { output_phase<S, n()>(s, head_dim); }); };
  block.clear(item.rows);
  Strips<S> strips(a, item, block, start, stop);
  Strip<S> pair[2];
  int now = 0;
  bool more = strips.next(pair[now]);
  if (more) score(pair[now]);
  while (more) {
    softmax(pair[now]);
    more = strips.next(pair[1 - now]);
    if (more) score(pair[1 - now]);
    output(pair[now]);
    now = 1 - now;
  }
}

template <class S>
void run_item(const AttentionArgs& a, const AttentionWalk& walk, const Item& item, RowBlock<S>& block) {
  const int head_dim = a.kv.head_dim, record = walk.record_floats(), width = block.width = round_up(head_dim, kLanes);
  for (int r = 0; r < item.rows; r++) {
    block.from[r] = walk.from(item.work.seq, item.row + r);
    block.to[r] = walk.to(item.work.seq, item.row + r);
    read_q(a, row_offset(a, item, walk.group(), item.row + r, int64_t(a.num_heads) * head_dim), block.q + r * head_dim);
  }
  for (int segment = item.first_segment; segment < item.last_segment; segment++) {
    const int start = segment * kSegment, stop = start + kSegment;
    run_segment<S>(a, item, block, start, stop);
    for (int r = 0; r < item.rows; r++) {
      if (block.to[r] <= start || block.from[r] >= stop) continue;
      const float weight = reduce_add(load(block.weight + r * kLanes)), *acc = block.acc + r * width;
      float* merged = block.merged + r * record;
      const bool begins = block.from[r] >= start, ends = block.to[r] <= stop;
      const int64_t y = row_offset(a, item, walk.group(), item.row + r, a.ldy);
      if (item.work.split) {
        int64_t at = (int64_t(item.kv_head) * item.work.rows + item.row + r) * item.work.segments + segment - item.work.first_segment;
        set_record(a.scratch + item.work.scratch + at * record, width, block.base[r], weight, acc);
      } else if (begins && ends) {
        write_row(a, y, acc, weight);
      } else if (begins) {
        set_record(merged, width, block.base[r], weight, acc);
      } else {
        merge_segment(merged, width, block.base[r], weight, acc);
        if (ends) write_row(a, y, merged, merged[width + 1]);
      }
    }
  }
}

// The first group of an item that this thread will probably run later.
void fetch_item(const AttentionArgs& a, const AttentionWalk& walk, const Item& item) {
  const int from = walk.from(item.work.seq, item.row), start = item.first_segment * kSegment;
  const int begin = from > start ? from : start;
  fetch_tiles(a, find_tiles(a, item, begin / kGroup * kGroup, begin, walk.to(item.work.seq, item.row + item.rows - 1)));
}

template <class S>
void run(const AttentionArgs& a, Team team) {
  AttentionWalk walk(a, team.size), ahead = walk;
  RowBlock<S> block;
  Item item, later;
  for (int index; walk.find(index = team.next->fetch_add(1, std::memory_order_relaxed), item);) {
    if (ahead.find(index + team.size, later) && later.rows <= kMemoryBoundRows) fetch_item(a, ahead, later);
    run_item<S>(a, walk, item, block);
  }
}

}  // namespace

void attention(const AttentionArgs& a, Team team) {
  if (a.kv.dtype == DType::f32) return run<FloatStep>(a, team);
  if (a.kv.dtype == DType::f16) return run<HalfStep>(a, team);
#if defined(__AVX512BF16__)
  if (a.q_dtype == DType::bf16) return run<BFloatDot>(a, team);
#endif
  run<BFloatStep>(a, team);
}

void attention_merge(const AttentionArgs& a, Team team) {
  AttentionWalk walk(a, team.size);
  int width = round_up(a.kv.head_dim, kLanes), record = walk.record_floats(), turn = 0;
  alignas(64) float total[kMaxHeadDim + 16];
  Item item;
  while (walk.next_split(item.work)) {
    const SequenceWork& w = item.work;
    for (item.kv_head = 0; item.kv_head < a.kv.num_kv_heads; item.kv_head++)
      for (int r = 0; r < w.rows; r++) {
        if (turn++ % team.size != team.rank) continue;
        const float* partial = a.scratch + w.scratch + (int64_t(item.kv_head) * w.rows + r) * w.segments * record;
        int first = walk.from(w.seq, r) / kSegment - w.first_segment, last = ceil_div(walk.to(w.seq, r), kSegment) - w.first_segment;
        for (int s = first; s < last; s++) {
          const float* p = partial + int64_t(s) * record;
          if (s == first)
            set_record(total, width, p[width], p[width + 1], p);
          else
            merge_segment(total, width, p[width], p[width + 1], p);
        }
        write_row(a, row_offset(a, item, walk.group(), r, a.ldy), total, total[width + 1]);
      }
  }
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
