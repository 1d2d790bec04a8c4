// From a row of logits to a token.  octavo/kernels/sampling_ops.py says what each of these means; a row is one thread's, from its first
// operation to its last.
#include "math.h"
#include "selection.h"

#include "kernels.h"

namespace octavo {
namespace OCTAVO_PATH {

constexpr int kNoToken = -1;
constexpr int kStretch = 4 * kLanes;  // of a row, summed in float32; the sums of stretches are added in float64

struct Best {
  float logit;
  int id;
  bool nan;
};

static Best best_of(const float* row, int n) {
  Best best = {-INFINITY, 0, false};
  int where = 0;
  for (int i = 0; i < n; i += kStretch) {
    F16 top = set1(-INFINITY);
    uint32_t nan = 0;
    for (int j = i; j < std::min(n, i + kStretch); j += kLanes) {
      F16 x = keep_first(load_upto(row + j, n - j), n - j, -INFINITY);
      nan |= bits_nan(x);
      top = max(top, x);
    }
    if (nan) return {NAN, 0, true};
    const float value = reduce_max(top);
    if (value > best.logit) best.logit = value, where = i;
  }
  best.id = int(std::find(row + where, row + n, best.logit) - row);
  return best;
}

int argmax_row(const float* row, int n) {
  const Best best = best_of(row, n);
  return best.nan || !std::isfinite(best.logit) ? kNoToken : best.id;
}

// e^((x - top) * factor) for a vector of logits
static inline F16 weigh(F16 x, float top, float factor) { return exponential(mul(sub(x, set1(top)), set1(factor))); }

// Sum of the stretch that starts at i, of vectors given by at(i, count).
template <class At>
static inline float sum_stretch(int n, int i, At at) {
  F16 sum[4] = {zero(), zero(), zero(), zero()};
  for (int v = 0; v < 4 && i + v * kLanes < n; v++) {
    const int begin = i + v * kLanes, count = std::min(kLanes, n - begin);
    sum[v] = keep_first(at(begin, count), count, 0.f);
  }
  return reduce_add(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

double logsumexp_row(const float* row, int n) {
  const Best best = best_of(row, n);
  if (best.nan || !std::isfinite(best.logit)) return best.logit;
  double sum = 0;
  for (int i = 0; i < n; i += kStretch)
    sum += sum_stretch(n, i, [&](int at, int count) { return weigh(load_upto(row + at, count), best.logit, 1.f); });
  return double(best.logit) + std::log(sum);
}

int top_row(const float* row, int n, int k, int32_t* ids) {
  const std::vector<Candidate> found = first_of(row, n, k);
  int count = 0;
  for (const Candidate& c : found) ids[count++] = c.id;
  for (int i = 0; i < n && count < std::min(k, n); i++)
    if (row[i] == -INFINITY) ids[count++] = i;
  return count;
}

int rank_row(const float* row, int n, int token) {
  const F16 value = set1(row[token]);
  int rank = 1;
  for (int i = 0; i < n; i += kLanes) {
    const int count = std::min(kLanes, n - i);
    rank += __builtin_popcount(bits_above(load_upto(row + i, count), value) & ((1u << count) - 1));
  }
  for (int i = 0; i < token; i++) rank += row[i] == row[token];
  return rank;
}

static void keep_prefix(const float* row, float* weights, int n, Prefix prefix) {
  for (int i = 0; i < n; i++)
    if (weights[i] > 0.f && !prefix.has(row[i], i)) weights[i] = 0.f;
}

int draw_row(const DrawArgs& a, float* weights) {
  const Best best = best_of(a.row, a.n);
  if (best.nan || !std::isfinite(best.logit)) return kNoToken;
  const float factor = float(1.0 / a.temperature), floor = float(a.min_p);
  for (int i = 0; i < a.n; i += kLanes) {
    const int count = std::min(kLanes, a.n - i);
    const F16 x = load_upto(a.row + i, count), w = weigh(x, best.logit, factor);
    const uint32_t kept = bits_above(x, set1(-INFINITY)) & ~bits_above(set1(floor), w);
    store_upto(weights + i, keep_bits(w, kept), count);
  }
  if (a.top_k > 0 && a.top_k < a.n) {
    const std::vector<Candidate> found = first_of(a.row, a.n, a.top_k);
    keep_prefix(a.row, weights, a.n, {found.back()});
  }
  auto stretch = [&](int i) { return double(sum_stretch(a.n, i, [&](int at, int count) { return load_upto(weights + at, count); })); };
  auto total = [&] {
    double sum = 0;
    for (int i = 0; i < a.n; i += kStretch) sum += stretch(i);
    return sum;
  };
  double mass = total();
  if (a.top_p < 1.0) {
    keep_prefix(a.row, weights, a.n, prefix_with_weight(a.row, weights, a.n, a.top_p * mass));
    mass = total();
  }
  // Inverse CDF: the stretch in which the running weight passes the target, then the token within it.
  const double target = a.u * mass;
  double running = 0;
  int last = best.id;
  for (int i = 0; i < a.n; i += kStretch) {
    const double sum = stretch(i);
    if (running + sum <= target && i + kStretch < a.n) {
      running += sum;
      continue;
    }
    for (int j = i; j < std::min(a.n, i + kStretch); j++) {
      if (weights[j] == 0.f) continue;
      last = j;
      if ((running += weights[j]) > target) return j;
    }
    if (last >= i) return last;  // rounding: the stretch's sum passed the target, its terms one by one did not
  }
  for (int j = a.n; j-- > 0;)
    if (weights[j] > 0.f) return j;
  return best.id;
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
