// The Python face of the compiled kernels: octavo.kernels._native.  octavo/kernels/native.py is what the rest of Octavo uses; it checks
// types, shapes and sizes of what it binds here by address.
#include <link.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>

#include "matrix.h"
#include "module_sampling.h"
#include "paths.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace octavo;

template <class T, int N>
using Array = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Address = uintptr_t;

template <class T>
static T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

static DType dtype_of(const std::string& name) {
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  throw std::invalid_argument("the dtype " + name + " isn't one of float32, bfloat16, float16");
}

static Activation activation_of(const std::string& name) {
  static const char* const names[] = {"none", "relu", "silu", "gelu", "gelu_tanh"};
  for (int i = 0; i < 5; i++)
    if (name == names[i]) return Activation(i);
  throw std::invalid_argument("the activation " + name + " isn't known");
}

static std::vector<std::string> path_names() {
  std::vector<std::string> names;
  for (const Kernels* kernels : available_paths()) names.push_back(kernels->name);
  return names;
}

// Files of every OpenMP runtime that is mapped into this process.
static std::vector<std::string> openmp_libraries() {
  std::vector<std::string> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* list) {
        const char* name = info->dlpi_name;
        if (std::strstr(name, "libgomp") || std::strstr(name, "libomp") || std::strstr(name, "libiomp"))
          static_cast<std::vector<std::string>*>(list)->push_back(name);
        return 0;
      },
      &found);
  return found;
}

static const Matrix* pack(WeightMemory& memory, Address data, const std::string& source_dtype, int n, int k, int64_t stride,
                          const std::string& dtype, bool gated, int threads) {
  nb::gil_scoped_release release;
  return memory.pack(Source{at<void>(data), dtype_of(source_dtype), n, k, stride}, dtype_of(dtype), gated, threads);
}

static void init_program(Program* self, const std::string& path, int threads, Address arena, int num_blocks, int64_t block_bytes,
                             int64_t page_bytes, int pages_per_block, const std::string& kv_dtype, int max_tokens,
                             int max_logit_rows, int max_positions, int vocab_size) {
  new (self) Program(find_path(path), ArenaInfo{at<uint8_t>(arena), num_blocks, block_bytes, page_bytes, pages_per_block, dtype_of(kv_dtype)},
                     Limits{max_tokens, max_logit_rows, max_positions, vocab_size}, threads);
}

static void add_embed(Program& p, bool head, const Matrix* tied, Address table, const std::string& dtype, Address positions,
                      int position_offset, int width, float scale, Address y) {
  EmbedArgs a{};
  a.tied = tied, a.table = at<void>(table), a.dtype = dtype_of(dtype), a.positions = at<void>(positions);
  a.position_offset = position_offset, a.width = width, a.scale = scale, a.y = at<float>(y);
  p.add(head, a);
}

static void add_norm(Program& p, bool head, bool layer_norm, Address x, Address weight, Address bias, float eps, int width,
                     const std::string& out, Address y, int64_t ldy) {
  NormArgs a{};
  a.layer_norm = layer_norm, a.x = at<float>(x), a.weight = at<float>(weight), a.bias = at<float>(bias), a.eps = eps;
  a.width = width, a.out = dtype_of(out), a.y = at<void>(y), a.ldy = ldy;
  p.add(head, a);
}

static void add_linear(Program& p, bool head, const Matrix* w, Address x, int64_t ldx, Address bias, const std::string& activation,
                       bool accumulate, const std::string& out, Address y, int64_t ldy) {
  LinearArgs a{};
  a.w = w, a.x = at<void>(x), a.ldx = ldx, a.bias = at<float>(bias), a.activation = activation_of(activation);
  a.accumulate = accumulate, a.out = dtype_of(out), a.y = at<void>(y), a.ldy = ldy;
  p.add(head, a);
}

static void add_experts(Program& p, bool head, const std::vector<const Matrix*>& up, const std::vector<const Matrix*>& down, int top_k,
                        bool normalize, const std::string& activation, const std::string& dtype, int width, Address scores, Address x,
                        int64_t ldx, Address gathered, Address inner, int64_t ld_inner, Address parts, Address y) {
  ExpertsArgs a{};
  a.num_experts = int(up.size()), a.top_k = top_k, a.normalize = normalize, a.activation = activation_of(activation);
  a.dtype = dtype_of(dtype), a.width = width, a.scores = at<float>(scores), a.x = at<void>(x), a.ldx = ldx;
  a.gathered = at<void>(gathered), a.inner = at<void>(inner), a.ld_inner = ld_inner, a.parts = at<float>(parts), a.y = at<float>(y);
  p.add(head, a, up, down);
}

static void add_append_kv(Program& p, bool head, int num_kv_heads, int head_dim, int64_t layer_offset, int num_heads, int rotary_dim,
                          Address cos, Address sin, Address q_norm, Address k_norm, float eps, Address qkv, int64_t ld_qkv,
                          const std::string& q_dtype, Address q) {
  AppendArgs a{};
  a.kv = p.layer(num_kv_heads, head_dim, layer_offset), a.num_heads = num_heads, a.rotary_dim = rotary_dim;
  a.cos = at<float>(cos), a.sin = at<float>(sin), a.q_norm = at<float>(q_norm), a.k_norm = at<float>(k_norm), a.eps = eps;
  a.qkv = at<float>(qkv), a.ld_qkv = ld_qkv, a.q_dtype = dtype_of(q_dtype), a.q = at<void>(q);
  p.add(head, a);
}

static void add_attention(Program& p, bool head, int num_kv_heads, int head_dim, int64_t layer_offset, int num_heads, float scale,
                          int window, const std::string& q_dtype, Address q, Address y, int64_t ldy) {
  AttentionArgs a{};
  a.kv = p.layer(num_kv_heads, head_dim, layer_offset), a.num_heads = num_heads, a.scale = scale, a.window = window;
  a.q_dtype = dtype_of(q_dtype), a.q = at<void>(q), a.y = at<void>(y), a.ldy = ldy;
  p.add(head, a);
}

static void forward(Program& p, Array<int32_t, 1> token_ids, Array<int32_t, 1> q_start, Array<int32_t, 1> start, Array<uint8_t, 1> write,
                    Array<int32_t, 1> row, Array<int32_t, 2> tables, bool contiguous) {
  const size_t seqs = start.shape(0);
  if (q_start.shape(0) != seqs + 1 || write.shape(0) != seqs || row.shape(0) != seqs)
    throw std::invalid_argument("q_start, start, write and row have " + std::to_string(q_start.shape(0)) + ", " + std::to_string(seqs) +
                                ", " + std::to_string(write.shape(0)) + " and " + std::to_string(row.shape(0)) +
                                " entries; n sequences need n + 1, n, n and n");
  BatchInput batch{token_ids.data(), int(token_ids.shape(0)), q_start.data(), start.data(),          row.data(),
                   write.data(),     int(seqs),               tables.data(),  int(tables.shape(0)), int(tables.shape(1)),
                   contiguous};
  nb::gil_scoped_release release;
  p.forward(batch);
}

static nb::dict seconds(const Program& p) {
  nb::dict result;
  for (int i = 0; i < kKinds; i++) result[kind_name(Kind(i))] = p.seconds()[size_t(i)];
  return result;
}

NB_MODULE(_native, m) {
  bind_sampling(m);
  m.def("available_paths", path_names);
  m.def("openmp_libraries", openmp_libraries);
  m.def(
      "packed_bytes", [](int n, int k, const std::string& dtype, bool gated) { return packed_bytes(n, k, dtype_of(dtype), gated); },
      "n"_a, "k"_a, "dtype"_a, "gated"_a);

  nb::class_<Matrix>(m, "Matrix").def_ro("n", &Matrix::n).def_ro("k", &Matrix::k).def_ro("k_padded", &Matrix::k_padded);
  nb::class_<WeightMemory>(m, "WeightMemory")
      .def(nb::init<int64_t>(), "bytes"_a)
      .def("pack", pack, "data"_a, "source_dtype"_a, "n"_a, "k"_a, "stride"_a, "dtype"_a, "gated"_a, "threads"_a,
           nb::rv_policy::reference_internal)
      .def_prop_ro("bytes", &WeightMemory::bytes);

  nb::class_<Program>(m, "Program")
      .def("__init__", init_program, "path"_a, "threads"_a, "arena"_a, "num_blocks"_a, "block_bytes"_a, "page_bytes"_a, "pages_per_block"_a,
           "kv_dtype"_a, "max_tokens"_a, "max_logit_rows"_a, "max_positions"_a, "vocab_size"_a)
      .def("add_embed", add_embed, "head"_a, "tied"_a.none(), "table"_a, "dtype"_a, "positions"_a, "position_offset"_a, "width"_a,
           "scale"_a, "y"_a)
      .def("add_norm", add_norm, "head"_a, "layer_norm"_a, "x"_a, "weight"_a, "bias"_a, "eps"_a, "width"_a, "out"_a, "y"_a, "ldy"_a)
      .def("add_linear", add_linear, "head"_a, "w"_a, "x"_a, "ldx"_a, "bias"_a, "activation"_a, "accumulate"_a, "out"_a, "y"_a, "ldy"_a)
      .def("add_experts", add_experts, "head"_a, "up"_a, "down"_a, "top_k"_a, "normalize"_a, "activation"_a, "dtype"_a, "width"_a,
           "scores"_a, "x"_a, "ldx"_a, "gathered"_a, "inner"_a, "ld_inner"_a, "parts"_a, "y"_a)
      .def("add_append_kv", add_append_kv, "head"_a, "num_kv_heads"_a, "head_dim"_a, "layer_offset"_a, "num_heads"_a, "rotary_dim"_a,
           "cos"_a, "sin"_a, "q_norm"_a, "k_norm"_a, "eps"_a, "qkv"_a, "ld_qkv"_a, "q_dtype"_a, "q"_a)
      .def("add_attention", add_attention, "head"_a, "num_kv_heads"_a, "head_dim"_a, "layer_offset"_a, "num_heads"_a, "scale"_a,
           "window"_a, "q_dtype"_a, "q"_a, "y"_a, "ldy"_a)
      .def("set_hidden", [](Program& p, Address from, Address to, int64_t bytes) { p.set_hidden(at<void>(from), at<void>(to), bytes); })
      .def("forward", forward, "token_ids"_a, "q_start"_a, "start"_a, "write"_a, "row"_a, "tables"_a, "contiguous"_a)
      .def("logits",
           [](Program& p, Array<int32_t, 1> rows) {
             nb::gil_scoped_release release;
             p.logits(rows.data(), int(rows.shape(0)));
           })
      .def("copy_blocks",
           [](Program& p, Array<int32_t, 2> pairs) {
             if (pairs.shape(1) != 2) throw std::invalid_argument("pairs has rows of " + std::to_string(pairs.shape(1)) + "; 2 are needed");
             nb::gil_scoped_release release;
             p.copy_blocks(pairs.data(), int(pairs.shape(0)));
           })
      .def("seconds", seconds)
      .def("scratch_bytes", &Program::scratch_bytes);
}
