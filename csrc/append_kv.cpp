// Norm and rotate q and k, round them, and write k and v into their page.  A row is one thread's.
//
// Neighbouring tokens share a page, and the two tokens of a pair share 32 bits of V, while another thread may be writing the other
// one: so a token writes exactly its own elements, V one by one.
#include "kernels.h"
#include "reduce.h"

namespace octavo {
namespace OCTAVO_PATH {

constexpr int kMaxHead = 256, kPageTokens = 16;

static void normalise(float* head, int width, const float* weight, float eps) {
  const F16 scale = set1(inverse_rms(head, width, eps));
  for (int i = 0; i < width; i += kLanes)
    store_upto(head + i, mul(mul(load_upto(head + i, width - i), scale), load_upto(weight + i, width - i)), width - i);
}

// Rotary embedding (Su et al. 2021, equation 34), element i against element i + half.
static void rotate(float* head, int half, const float* cos, const float* sin) {
  for (int i = 0; i < half; i += kLanes) {
    const int count = half - i;
    F16 a = load_upto(head + i, count), b = load_upto(head + half + i, count);
    F16 c = load_upto(cos + i, count), s = load_upto(sin + i, count);
    store_upto(head + i, sub(mul(a, c), mul(b, s)), count);
    store_upto(head + half + i, add(mul(b, c), mul(a, s)), count);
  }
}

// The head in 16 bits.  Both buffers are padded to whole vectors.
static void round_head(const float* head, int width, DType dtype, half_t* out) {
  for (int i = 0; i < width; i += kLanes) {
    if (dtype == DType::bf16)
      store_bf16(out + i, load(head + i));
    else
      store_fp16(out + i, load(head + i));
  }
}

static void write_k(const float* head, int width, DType dtype, int token, void* page) {
  if (dtype == DType::f32) {
    float* to = (float*)page + token;
    for (int d = 0; d < width; d++) to[d * kPageTokens] = head[d];
    return;
  }
  alignas(4) half_t rounded[kMaxHead];
  round_head(head, width, dtype, rounded);
  char* to = (char*)page + token * 4;
  for (int d = 0; d < width; d += 2) std::memcpy(to + d * kPageTokens * 2, rounded + d, 4);
}

static void write_v(const float* head, int width, DType dtype, int token, void* page) {
  if (dtype == DType::f32) {
    std::memcpy((float*)page + token * width, head, width * sizeof(float));
    return;
  }
  half_t rounded[kMaxHead];
  round_head(head, width, dtype, rounded);
  half_t* to = (half_t*)page + (token / 2) * width * 2 + token % 2;
  for (int d = 0; d < width; d++) to[2 * d] = rounded[d];
}

static void write_q(const float* head, int width, DType dtype, void* q, int64_t at) {
  if (dtype == DType::f32) {
    std::memcpy((float*)q + at, head, width * sizeof(float));
    return;
  }
  half_t rounded[kMaxHead];
  round_head(head, width, dtype, rounded);
  std::memcpy((half_t*)q + at, rounded, width * sizeof(half_t));
}

void append_kv(const AppendArgs& a, Team team) {
  const Batch& batch = *a.batch;
  const int width = a.kv.head_dim, kv_heads = a.kv.num_kv_heads, half = a.rotary_dim / 2;
  const int64_t head_bytes = int64_t(width) * kPageTokens * dtype_bytes(a.kv.dtype);
  float head[kMaxHead] = {};
  const int end = int(int64_t(batch.num_tokens) * (team.rank + 1) / team.size);
  for (int row = int(int64_t(batch.num_tokens) * team.rank / team.size); row < end; row++) {
    const float* qkv = a.qkv + row * a.ld_qkv;
    const int position = batch.position_of[row], seq = batch.seq_of[row];
    auto prepare = [&](int index, const float* weight) {
      std::memcpy(head, qkv + index * width, width * sizeof(float));
      if (weight) normalise(head, width, weight, a.eps);
      if (half) rotate(head, half, a.cos + int64_t(position) * half, a.sin + int64_t(position) * half);
    };
    for (int h = 0; h < a.num_heads; h++) {
      prepare(h, a.q_norm);
      write_q(head, width, a.q_dtype, a.q, (int64_t(row) * a.num_heads + h) * width);
    }
    if (!batch.write[seq]) continue;
    uint8_t* page = page_address(a.kv, batch, batch.row[seq], position / kPageTokens);
    const int token = position % kPageTokens;
    for (int h = 0; h < kv_heads; h++) {
      prepare(a.num_heads + h, a.k_norm);
      write_k(head, width, a.kv.dtype, token, page + h * head_bytes);
      std::memcpy(head, qkv + (a.num_heads + kv_heads + h) * width, width * sizeof(float));
      write_v(head, width, a.kv.dtype, token, page + (kv_heads + h) * head_bytes);
    }
  }
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
