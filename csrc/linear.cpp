// y = epilogue(x * w^T) over packed panels.
//
// The team shares the output as a grid: its rows in bands, its columns in ranges.  A range may begin inside a panel, so that few panels
// still divide evenly; every output belongs to one thread, which makes its whole chain.  Few rows stream the weights once, past every
// row at a time; many rows go by in blocks, chain by chain, so that the chain's part of a panel stays in the cache while they do.
#include <algorithm>

#include "kernels.h"
#include "math.h"
#include "tile.h"

namespace octavo {
namespace OCTAVO_PATH {

constexpr int kRowBlock = 192;                    // rows that pass over a panel before the next one is fetched

struct Range {
  int begin, end;
};

static inline Range share(int total, int parts, int part) {
  return {int(int64_t(total) * part / parts), int(int64_t(total) * (part + 1) / parts)};
}

// The rows and the columns (in units of `unit` columns) of one thread.  The grid of row bands by column ranges is the one whose largest
// part is smallest; among equals, the one with the fewest row bands, which fetches the weights the fewest times.
struct Part {
  Range rows, units;
};

static Part part_of(int m, int units, Team team) {
  int best = 1;
  int64_t best_cost = INT64_MAX;
  for (int bands = 1; bands <= team.size; bands++) {
    if (team.size % bands) continue;
    int ranges = team.size / bands;
    int rows = (m + bands - 1) / bands;
    int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    int64_t cost = (rows + 2 * tiles) * int64_t((units + ranges - 1) / ranges);
    if (cost < best_cost) best_cost = cost, best = bands;
  }
  int ranges = team.size / best;
  return {share(m, best, team.rank / ranges), share(units, ranges, team.rank % ranges)};
}

// Adds the bias, activates, multiplies the halves of a gated matrix, and stores: `vectors` vectors of one row of sums, from `column` on.
static void finish_row(const LinearArgs& a, int row, int column, int vectors, const float* sums) {
  const bool gated = a.w->gated;
  const int width = gated ? a.w->n / 2 : a.w->n;
  for (int v = 0; v < vectors; v += gated ? 2 : 1) {
    const int at = gated ? (column + v * kLanes) / 2 : column + v * kLanes;
    const int count = std::min(kLanes, width - at);
    if (count <= 0) return;
    const bool whole = count == kLanes;
    auto read = [&](const float* p) { return whole ? load(p) : load_first(p, count); };
    F16 y = load(sums + v * kLanes);
    if (a.bias) y = add(y, read(a.bias + at));
    y = activate(a.activation, y);
    if (gated) {
      F16 up = load(sums + (v + 1) * kLanes);
      if (a.bias) up = add(up, read(a.bias + width + at));
      y = mul(y, up);
    }
    if (a.out == DType::f32) {
      float* to = (float*)a.y + row * a.ldy + at;
      if (a.accumulate) y = add(read(to), y);
      if (whole)
        store(to, y);
      else
        store_first(to, y, count);
    } else {
      half_t* to = (half_t*)a.y + row * a.ldy + at;
      half_t rounded[kLanes];
      store_bf16(whole ? to : rounded, y);
      if (!whole) std::memcpy(to, rounded, count * sizeof(half_t));
    }
  }
}

// All rows of `rows` against V vectors of one panel.  sums: [kRowBlock, 64], this thread's own.
// What follows in memory (`follows`: it is this thread's too) is fetched while the rows pass: weights come from memory once a step, and
// only the first of several tiles would wait for them.
template <class S, int V>
static void rows_by_vectors(const LinearArgs& a, Range rows, int panel, int vector, bool follows, float* sums) {
  typedef typename S::Element Element;
  const int steps = a.w->k_padded / S::pair;
  const int count = rows.end - rows.begin, tiles = (count + kTileRows - 1) / kTileRows;
  const int sharers = std::min(tiles, kPanelVectors), lines = (kPanelVectors + sharers - 1) / sharers;
  const Element* w = (const Element*)a.w->packed + (int64_t(panel) * steps * kPanel + vector * kLanes) * S::pair;
  for (int begin = 0; begin < steps; begin += S::chain) {
    const int n = std::min(S::chain, steps - begin);
    const char* next = (const char*)(w + int64_t(begin + n) * kPanel * S::pair);
    const bool fetch = V == kPanelVectors && tiles > 1 && (follows || begin + n < steps);
    for (int t = 0; t < tiles; t++) {
      const Range r = share(count, tiles, t);
      const Ahead ahead{next + int64_t(t) * lines * n * 64, fetch && t < sharers ? lines : 0};
      float* tile_sums = sums + r.begin * kPanel;
      tile_for<S, V>(r.end - r.begin)((const Element*)a.x + (rows.begin + r.begin) * a.ldx + begin * S::pair, a.ldx,
                                      w + int64_t(begin) * kPanel * S::pair, n, begin > 0, tile_sums + vector * kLanes, ahead);
    }
  }
}

template <class S>
static void product(const LinearArgs& a, Team team) {
  const int unit = a.w->gated ? 2 : 1;  // vectors that can't be parted: a gate and its up
  const int vectors_in_use = a.w->gated ? 2 * ((a.w->n / 2 + kLanes - 1) / kLanes) : (a.w->n + kLanes - 1) / kLanes;
  const Part part = part_of(a.m, vectors_in_use / unit, team);
  alignas(64) float sums[kRowBlock * kPanel];
  const int count = part.rows.end - part.rows.begin, blocks = (count + kRowBlock - 1) / kRowBlock;
  for (int block = 0; block < blocks; block++) {
    Range rows = share(count, blocks, block);
    rows = {rows.begin + part.rows.begin, rows.end + part.rows.begin};
    for (int begin = part.units.begin * unit, end; begin < part.units.end * unit; begin = end) {
      const int panel = begin / kPanelVectors;
      end = std::min((panel + 1) * kPanelVectors, part.units.end * unit);
      for (int v = begin; v < end;) {
        const int vector = v % kPanelVectors;
        const bool follows = v + kPanelVectors < part.units.end * unit;
        if (kTileVectors >= 4 && end - v == 4)
          rows_by_vectors<S, kTileVectors >= 4 ? 4 : 1>(a, rows, panel, vector, follows, sums), v += 4;
        else if (kTileVectors >= 2 && end - v >= 2)
          rows_by_vectors<S, kTileVectors >= 2 ? 2 : 1>(a, rows, panel, vector, follows, sums), v += 2;
        else
          rows_by_vectors<S, 1>(a, rows, panel, vector, follows, sums), v += 1;
      }
      for (int r = rows.begin; r < rows.end; r++)
        finish_row(a, r, begin * kLanes, end - begin, sums + (r - rows.begin) * kPanel + begin % kPanelVectors * kLanes);
    }
  }
}

void linear(const LinearArgs& a, Team team) {
  if (a.w->dtype == DType::bf16)
    product<BFloatProduct>(a, team);
  else
    product<FloatProduct>(a, team);
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
