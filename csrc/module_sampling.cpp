// _native.Sampling: rows of logits by address.  octavo/kernels/native_sampling.py checks dtypes and shapes.
#include "module_sampling.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <omp.h>

#include <cmath>
#include <vector>

#include "paths.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace octavo;

namespace {

using Address = uintptr_t;

const float* row_at(Address address) { return reinterpret_cast<const float*>(address); }

class Sampling {
 public:
  Sampling(const std::string& path, int threads) : kernels_(find_path(path)), threads_(threads), weights_(size_t(threads)) {}

  std::vector<int> argmax(Address logits, int rows, int n) const {
    nb::gil_scoped_release release;
    std::vector<int> best(static_cast<size_t>(rows));
#pragma omp parallel for num_threads(threads_) schedule(static) if (rows > 1)
    for (int i = 0; i < rows; i++) best[size_t(i)] = kernels_->argmax_row(row_at(logits) + int64_t(i) * n, n);
    return best;
  }

  // (log-probability, rank) of the token, then the ids and log-probabilities of the first k.
  nb::tuple top_logprobs(Address address, int n, int k, int token) const {
    const float* row = row_at(address);
    std::vector<int> ids(static_cast<size_t>(k));
    std::vector<float> logprobs;
    double normaliser;
    int rank;
    {
      nb::gil_scoped_release release;
      normaliser = kernels_->logsumexp_row(row, n);
      rank = kernels_->rank_row(row, n, token);
      ids.resize(size_t(kernels_->top_row(row, n, k, ids.data())));
      for (int id : ids) logprobs.push_back(float(row[id] - normaliser));
    }
    return nb::make_tuple(float(row[token] - normaliser), rank, ids, logprobs);
  }

  std::vector<int> draw(const std::vector<Address>& rows, int n, const std::vector<double>& temperature, const std::vector<int>& top_k,
                        const std::vector<double>& top_p, const std::vector<double>& min_p, const std::vector<double>& u) {
    const size_t count = rows.size();
    if (temperature.size() != count || top_k.size() != count || top_p.size() != count || min_p.size() != count || u.size() != count)
      throw std::invalid_argument("draw takes one temperature, top_k, top_p, min_p and u for each of its " + std::to_string(count) + " rows");
    nb::gil_scoped_release release;
    std::vector<int> drawn(count);
#pragma omp parallel for num_threads(threads_) schedule(dynamic) if (count > 1)
    for (size_t i = 0; i < count; i++) {
      std::vector<float>& weights = weights_[size_t(omp_get_thread_num())];
      weights.resize(size_t(n));
      const DrawArgs args{row_at(rows[i]), n, top_k[i], temperature[i], top_p[i], min_p[i], u[i]};
      drawn[i] = kernels_->draw_row(args, weights.data());
    }
    return drawn;
  }

 private:
  const Kernels* kernels_;
  int threads_;
  std::vector<std::vector<float>> weights_;  // scratch of each thread
};

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<Sampling>(m, "Sampling")
      .def(nb::init<const std::string&, int>(), "path"_a, "threads"_a)
      .def("argmax", &Sampling::argmax, "logits"_a, "rows"_a, "n"_a)
      .def("top_logprobs", &Sampling::top_logprobs, "row"_a, "n"_a, "k"_a, "token"_a)
      .def("draw", &Sampling::draw, "rows"_a, "n"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "u"_a);
}
