// What passes between the program that orders the kernels (program.cpp) and the kernels themselves.
//
// Every kernel is written for one team: all `team` threads of a step call it with the same arguments and their own `rank`; it shares
// out its work and returns without waiting for the others.  The program puts a barrier between kernels.  Work that is uneven is
// handed out through `next`, an atomic counter that is 0 when the kernel starts.
//
// Law 1: what a kernel does to one row is the same sequence of operations whatever the number of rows, their order, the team, or
// the tile they fall into.
#pragma once
#include <atomic>
#include <cstdint>

namespace octavo {

enum class DType : int { f32 = 0, bf16 = 1, f16 = 2 };
enum class Activation : int { none = 0, relu = 1, silu = 2, gelu = 3, gelu_tanh = 4 };

static inline int dtype_bytes(DType t) { return t == DType::f32 ? 4 : 2; }

struct Team {
  int rank, size;
  std::atomic<int>* next;
};

// ---- products -----------------------------------------------------------------------------------------------------------------
// y[m, n] = sum over k of x[m, k] * w[n, k].  Packed in panels of 64 columns n: [n / 64][k / pair][64][pair], pair = 2 for 16-bit
// weights and 1 for float32; n and k are padded with zeros.  A gated matrix has the rows of `gate` and of `up` interleaved, 16 and
// 16, so that neighbouring vectors hold both halves of sixteen outputs.
struct Matrix {
  int n = 0, k = 0;            // as the model knows them (gated: n = both halves)
  int panels = 0, k_padded = 0;
  DType dtype = DType::f32;    // f32 or bf16
  bool gated = false;
  void* packed = nullptr;      // 64-byte aligned, owned
};

struct LinearArgs {
  const Matrix* w;
  const void* x;               // [m, ldx] in w->dtype; ldx elements from row to row, readable up to k_padded
  int64_t ldx;
  int m;
  const float* bias;           // [n] or null
  Activation activation;       // gated: y = act(gate) * up, n / 2 columns
  bool accumulate;             // add to float32 `y` instead of storing (no activation)
  DType out;                   // of y: f32, or bf16 when w is bf16
  void* y;                     // [m, ldy]
  int64_t ldy;
};

// ---- mixtures of experts --------------------------------------------------------------------------------------------------------
// y += for each row, the sum over the experts that it chooses of share * down(activation(gate) * up).
struct ExpertsArgs {
  int num_experts, top_k;
  bool normalize;              // shares of the chosen experts sum to 1; else they are what a softmax over all gives
  const Matrix *const *up, *const *down;  // [num_experts]; up is gated, [2 * inner, width]; down is [width, inner]
  Activation activation;
  DType dtype;                 // of x, gathered and inner: the weights'
  int m, width;
  const float* scores;         // [m, num_experts]
  const void* x;               // [m, ldx]
  int64_t ldx, ld_inner;
  void *gathered, *inner;      // [m * top_k, ldx] and [m * top_k, ld_inner], rows in the order of their experts
  float *parts, *y;            // [m * top_k, width], and [m, width]
  int32_t *chosen, *place;     // [m * top_k]: the experts of each row, best first, and where its rows lie in the order of experts
  int32_t* begin;              // [num_experts + 1]
  float* shares;               // [m * top_k]
};

// ---- rows ---------------------------------------------------------------------------------------------------------------------
struct EmbedArgs {
  const Matrix* tied;          // gather from a packed matrix, or (null) from
  const void* table;           //   [vocab, width] in dtype
  DType dtype;
  const void* positions;       // [positions, width] in dtype, learned, or null; row = position + position_offset
  int position_offset, width, m;
  float scale;
  const int32_t* token_ids;    // [m]
  const int32_t* position_of;  // [m]
  float* y;                    // [m, width]
};

struct NormArgs {
  bool layer_norm;             // else RMSNorm
  const float *x, *weight, *bias;  // x [m, width]; bias may be null
  float eps;
  int width, m;
  DType out;
  void* y;                     // [m, ldy]; columns from width to ldy are zeroed
  int64_t ldy;
};

// ---- paged memory -------------------------------------------------------------------------------------------------------------
// A block is `pages_per_block` (a power of two) pages of 16 tokens.  Inside a page, layer L starts at `layer_offset`; there first K, per head
// [head_dim / pair][16 tokens][pair], then V, per head [16 / pair][head_dim][pair] (pair = 2 for 16-bit storage, 1 for float32).
struct KVLayer {
  uint8_t* arena;
  int64_t block_bytes, page_bytes, layer_offset;
  int pages_per_block, num_kv_heads, head_dim;
  DType dtype;
};

// The ragged batch.  Sequence s owns rows q_start[s] .. q_start[s + 1] at positions start[s], start[s] + 1, ...; its blocks are
// tables[row[s] * table_stride + i].  With `contiguous` only the first entry is read: all its blocks follow that one in the arena.
struct Batch {
  int num_tokens, num_seqs;
  const int32_t *token_ids, *q_start, *start, *row;
  const uint8_t* write;        // [num_seqs]: 0 leaves the cache as it is
  const int32_t* tables;
  int64_t table_stride;
  bool contiguous;
  const int32_t *seq_of, *position_of;  // [num_tokens], derived once a step
};

// Address of the page that holds tokens 16 * page ... of the sequence with the given table row.
static inline uint8_t* page_address(const KVLayer& kv, const Batch& b, int row, int page) {
  const int32_t* table = b.tables + row * b.table_stride;
  if (b.contiguous) return kv.arena + table[0] * kv.block_bytes + page * kv.page_bytes + kv.layer_offset;
  const int shift = __builtin_ctz(unsigned(kv.pages_per_block)), in_block = page & (kv.pages_per_block - 1);
  return kv.arena + table[page >> shift] * kv.block_bytes + in_block * kv.page_bytes + kv.layer_offset;
}

// Rotate q and k, round them, write k and v into the cache and q into its buffer.  Also the per-head norms of q and k (null: none).
struct AppendArgs {
  KVLayer kv;
  const Batch* batch;
  int num_heads, rotary_dim;   // rotary_dim 0: no rotation; the first rotary_dim elements turn, half against half
  const float *cos, *sin;      // [positions, rotary_dim / 2]
  const float *q_norm, *k_norm;  // [head_dim] RMSNorm weights, before the rotation
  float eps;
  const float* qkv;            // [m, ld_qkv]: q heads, then k heads, then v heads
  int64_t ld_qkv;
  DType q_dtype;
  void* q;                     // [m, num_heads * head_dim]
};

struct AttentionArgs {
  KVLayer kv;
  const Batch* batch;
  int num_heads;
  float scale;
  int window;                  // positions seen, one's own included; 0: all
  DType q_dtype;               // of q and y
  const void* q;               // [m, num_heads * head_dim]
  void* y;                     // [m, ldy]
  int64_t ldy;
  float* scratch;              // for partial results of split contexts
  int64_t scratch_floats;
};

// ---- sampling -----------------------------------------------------------------------------------------------------------------
// As octavo/kernels/sampling_ops.py has it.  temperature is above 0.
struct DrawArgs {
  const float* row;            // [n]
  int n, top_k;
  double temperature, top_p, min_p, u;
};

// One table per instruction path; program.cpp picks one at start.
struct Kernels {
  const char* name;
  void (*linear)(const LinearArgs&, Team);
  // experts run as six kernels with barriers between them, in this order
  void (*experts[6])(const ExpertsArgs&, Team);
  void (*embed)(const EmbedArgs&, Team);
  void (*norm)(const NormArgs&, Team);
  void (*append_kv)(const AppendArgs&, Team);
  // attention runs as two kernels with a barrier between them: partial results, then their merge (which may have nothing to do)
  void (*attention)(const AttentionArgs&, Team);
  void (*attention_merge)(const AttentionArgs&, Team);
  // Sampling works on one row in one thread.
  int (*argmax_row)(const float* row, int n);                      // -1: a NaN, or no finite maximum
  double (*logsumexp_row)(const float* row, int n);
  int (*top_row)(const float* row, int n, int k, int32_t* ids);    // returns how many: min(k, n)
  int (*rank_row)(const float* row, int n, int token);
  int (*draw_row)(const DrawArgs&, float* weights);                // weights: scratch [n]
};

}  // namespace octavo
