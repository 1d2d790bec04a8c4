// Paged attention: prefill, chunks, decode, query-only rows and verification in one ragged call (after PagedAttention, Kwon et al. 2023,
// with the online softmax of FlashAttention, Dao et al. 2022, and split contexts as in Flash-Decoding).
//
// What a row undergoes is fixed by its q, its position and the window alone: groups of 64 tokens and segments of 1,024 at absolute
// positions, a chain of multiply-adds in each.  See attention_tile.h for the products, attention_group.h for the softmax,
// attention_plan.h for who does what.
#include "attention_group.h"
#include "attention_plan.h"
#include "kernels.h"

namespace octavo {
namespace OCTAVO_PATH {
namespace {

// One item's rows: their q, and the sums of the current segment and of all segments before it.
template <class S>
struct RowBlock {
  alignas(64) float acc[kMaxBlockFloats];
  alignas(64) float weight[kMaxBlockRows * kLanes];
  alignas(64) float max[kMaxBlockRows];
  alignas(64) float merged[kMaxBlockFloats + kMaxBlockRows * 16];  // records
  alignas(64) typename S::Weight q[kMaxBlockFloats];
  int from[kMaxBlockRows], to[kMaxBlockRows];  // tokens that each row sees
};

// total = total merged with one more segment.  An empty record has maximum -inf and zeros.
void merge_segment(float* total, int width, float max, float weight, const float* acc) {
  float before = total[width], top = max > before ? max : before;
  F16 keep = exp2_nonpositive(set1(before - top)), take = exp2_nonpositive(set1(max - top));
  for (int d = 0; d < width; d += kLanes) store(total + d, fma(load(acc + d), take, mul(load(total + d), keep)));
  F16 sum = fma(set1(weight), take, mul(set1(total[width + 1]), keep));
  total[width] = top;
  store_first(total + width + 1, sum, 1);
}

void clear_record(float* record, int width) {
  for (int d = 0; d < width; d += kLanes) store(record + d, zero());
  record[width] = -INFINITY;
  record[width + 1] = 0.f;
}

int64_t row_offset(const AttentionArgs& a, const Item& item, int group, int row, int64_t ld) {
  int token = a.batch->q_start[item.work.seq] + row / group;
  return token * ld + (item.kv_head * group + row % group) * int64_t(a.kv.head_dim);
}

// y = record's sums over V / its weight.
void write_row(const AttentionArgs& a, int64_t offset, const float* record, int width) {
  F16 share = set1(1.f / record[width + 1]);
  int dim = a.kv.head_dim, whole = dim / kLanes * kLanes;  // then, perhaps, 8 more
  if (a.q_dtype == DType::f32) {
    float* y = (float*)a.y + offset;
    for (int d = 0; d < whole; d += kLanes) store(y + d, mul(load(record + d), share));
    if (whole < dim) store_first(y + whole, mul(load(record + whole), share), 8);
  } else {
    half_t *y = (half_t*)a.y + offset, rest[kLanes];
    for (int d = 0; d < whole; d += kLanes) store_bf16(y + d, mul(load(record + d), share));
    if (whole == dim) return;
    store_bf16(rest, mul(load(record + whole), share));
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

// Where the item's head lies in the tiles of group `g` that hold tokens [begin, end).
void find_tiles(const AttentionArgs& a, const Item& item, int g, int begin, int end, const uint8_t** k, const uint8_t** v) {
  int64_t head_bytes = int64_t(kTile) * a.kv.head_dim * dtype_bytes(a.kv.dtype);
  int first = begin > g ? (begin - g) / kTile : 0;
  for (int t = first; t < kGroupTiles && g + t * kTile < end; t++) {
    const uint8_t* page = page_address(a.kv, *a.batch, a.batch->row[item.work.seq], g / kTile + t);
    k[t] = page + item.kv_head * head_bytes;
    v[t] = page + (a.kv.num_kv_heads + item.kv_head) * head_bytes;
  }
}

// group_rows for `rows` rows, 1 to R.
template <class S, int R = kRows>
void group_of(int rows, const typename S::Weight* q, int head_dim, float scale, const GroupTiles& tiles, const int* from,
              const int* to, RowSums sums) {
  if (rows == R) return group_rows<S, R>(q, head_dim, scale, tiles, from, to, sums);
  if constexpr (R > 1) group_of<S, R - 1>(rows, q, head_dim, scale, tiles, from, to, sums);
}

// Sums tokens [start, stop) of a segment, for the rows that see any of them.
template <class S>
void run_segment(const AttentionArgs& a, const Item& item, RowBlock<S>& block, int start, int stop) {
  int head_dim = a.kv.head_dim, width = round_up(head_dim, kLanes);
  float scale = a.scale * 1.44269504f;  // powers of 2 instead of e
  RowSums sums = {block.max, block.weight, block.acc, width};
  for (int d = 0; d < item.rows * width; d += kLanes) store(block.acc + d, zero());
  for (int r = 0; r < item.rows; r++) {
    block.max[r] = -INFINITY;
    store(block.weight + r * kLanes, zero());
  }
  if (start < block.from[0]) start = block.from[0] / kGroup * kGroup;
  if (stop > block.to[item.rows - 1]) stop = block.to[item.rows - 1];
  int first = 0, last = 0;  // rows that see some of the group; both only grow
  for (int g = start; g < stop; g += kGroup) {
    while (block.to[first] <= g) first++;
    while (last < item.rows && block.from[last] < g + kGroup) last++;
    int from[kMaxBlockRows], to[kMaxBlockRows];
    for (int r = first; r < last; r++) {
      from[r] = block.from[r] > g ? block.from[r] - g : 0;
      to[r] = block.to[r] < g + kGroup ? block.to[r] - g : kGroup;
    }
    GroupTiles tiles = {};
    int begin = block.from[0], end = block.to[item.rows - 1];
    find_tiles(a, item, g, begin, end, tiles.k, tiles.v);
    for (int t = 0; t < kGroupTiles; t++) tiles.next_k[t] = tiles.k[t], tiles.next_v[t] = tiles.v[t];
    if (g + kGroup < end) find_tiles(a, item, g + kGroup, begin, end, tiles.next_k, tiles.next_v);
    for (int r = first; r < last; r += kRows)
      group_of<S>(last - r < kRows ? last - r : kRows, block.q + r * head_dim, head_dim, scale, tiles, from + r, to + r, sums.from(r));
  }
}

template <class S>
void run_item(const AttentionArgs& a, const AttentionWalk& walk, const Item& item, RowBlock<S>& block) {
  int head_dim = a.kv.head_dim, width = round_up(head_dim, kLanes), record = walk.record_floats(), group = walk.group();
  for (int r = 0; r < item.rows; r++) {
    block.from[r] = walk.from(item.work.seq, item.row + r);
    block.to[r] = walk.to(item.work.seq, item.row + r);
    read_q(a, row_offset(a, item, group, item.row + r, int64_t(a.num_heads) * head_dim), block.q + r * head_dim);
    clear_record(block.merged + r * record, width);
  }
  for (int segment = item.first_segment; segment < item.last_segment; segment++) {
    int start = segment * kSegment, stop = start + kSegment;
    run_segment<S>(a, item, block, start, stop);
    for (int r = 0; r < item.rows; r++) {
      if (block.to[r] <= start || block.from[r] >= stop) continue;
      float weight = reduce_add(load(block.weight + r * kLanes));
      if (item.work.split) {
        int64_t at = (int64_t(item.kv_head) * item.work.rows + item.row + r) * item.work.segments + segment - item.work.first_segment;
        float* partial = a.scratch + item.work.scratch + at * record;
        for (int d = 0; d < width; d += kLanes) store(partial + d, load(block.acc + r * width + d));
        partial[width] = block.max[r];
        partial[width + 1] = weight;
      } else {
        merge_segment(block.merged + r * record, width, block.max[r], weight, block.acc + r * width);
      }
    }
  }
  if (!item.work.split)
    for (int r = 0; r < item.rows; r++)
      write_row(a, row_offset(a, item, group, item.row + r, a.ldy), block.merged + r * record, width);
}

template <class S>
void run(const AttentionArgs& a, Team team) {
  AttentionWalk walk(a, team.size);
  RowBlock<S> block;
  Item item;
  while (walk.find(team.next->fetch_add(1, std::memory_order_relaxed), item)) run_item<S>(a, walk, item, block);
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
        clear_record(total, width);
        for (int s = first; s < last; s++) {
          const float* p = partial + int64_t(s) * record;
          merge_segment(total, width, p[width], p[width + 1], p);
        }
        write_row(a, row_offset(a, item, walk.group(), r, a.ldy), total, width);
      }
  }
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
