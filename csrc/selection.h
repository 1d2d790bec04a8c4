// The first of a row in its order: falling logit, among equals the lower id first.
#pragma once
#include <algorithm>
#include <vector>

#include "compare.h"
#include "reduce.h"

namespace octavo {
namespace OCTAVO_PATH {

struct Candidate {
  float logit;
  int id;
  bool operator<(const Candidate& other) const { return logit > other.logit || (logit == other.logit && id < other.id); }
};

// Everything up to and including one candidate: what min_p, top_k and top_p keep is always such a prefix of the order.
struct Prefix {
  Candidate last;
  bool has(float logit, int id) const { return logit > last.logit || (logit == last.logit && id <= last.id); }
};

// The first `k` of the row in order (all that are above -inf, when those are fewer).  One pass: what can't be among the first k any
// more falls to one comparison per sixteen.
static std::vector<Candidate> first_of(const float* row, int n, int k) {
  std::vector<Candidate> found;
  if (k <= 0) return found;
  const size_t limit = size_t(k) + std::max(k, 256);
  found.reserve(limit + kLanes);
  float threshold = -INFINITY;  // a later id must be above it
  for (int i = 0; i < n; i += kLanes) {
    const int count = std::min(kLanes, n - i);
    uint32_t bits = bits_above(load_upto(row + i, count), set1(threshold)) & ((1u << count) - 1);
    for (; bits; bits &= bits - 1) {
      const int lane = __builtin_ctz(bits);
      found.push_back({row[i + lane], i + lane});
    }
    if (found.size() >= limit) {
      std::nth_element(found.begin(), found.begin() + (k - 1), found.end());
      found.resize(size_t(k));
      threshold = found[size_t(k) - 1].logit;
    }
  }
  std::sort(found.begin(), found.end());
  if (found.size() > size_t(k)) found.resize(size_t(k));
  return found;
}

// The shortest prefix of the ids with a weight above 0 whose weights sum to `target` or more (all of them, if none does).
// First among the likeliest few; if they don't hold it, by halving around pivots, which sorts only what is close to the end.
static Prefix prefix_with_weight(const float* row, const float* weights, int n, double target) {
  constexpr int kFew = 256, kSortable = 64;
  double sum = 0;
  for (const Candidate& c : first_of(row, n, kFew))
    if ((sum += weights[c.id]) >= target) return {c};
  std::vector<Candidate> all;
  for (int i = 0; i < n; i++)
    if (weights[i] > 0.f) all.push_back({row[i], i});
  auto begin = all.begin(), end = all.end();
  double before = 0;  // the weight of everything in front of `begin`
  while (end - begin > kSortable) {
    const Candidate a = *begin, b = begin[(end - begin) / 2], c = end[-1];
    const Candidate pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    auto middle = std::partition(begin, end, [&](const Candidate& x) { return !(pivot < x); });
    if (middle == end) middle = std::partition(begin, end, [&](const Candidate& x) { return x < pivot; });
    double front = 0;
    for (auto it = begin; it != middle; ++it) front += weights[it->id];
    if (before + front >= target)
      end = middle;
    else
      before += front, begin = middle;
  }
  std::sort(begin, end);
  for (auto it = begin; it != end; ++it)
    if ((before += weights[it->id]) >= target) return {*it};
  // Rounding alone can leave the target out of reach: then the last of the order closes the prefix.
  return {*std::max_element(all.begin(), all.end())};
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
