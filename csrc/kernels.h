// The kernels of one instruction path, and the tables by which the program reaches them.
//
// A kernel source is compiled once per path with OCTAVO_PATH set; it includes this file and defines what it names.  Such a source
// keeps every helper `static` and inside its path's namespace: a weak symbol shared between paths could make the linker
// serve AVX-512 code to a machine that lacks it.
#pragma once
#include "abi.h"

#ifdef OCTAVO_PATH
namespace octavo {
namespace OCTAVO_PATH {

void linear(const LinearArgs&, Team);
void experts_route(const ExpertsArgs&, Team);
void experts_group(const ExpertsArgs&, Team);
void experts_gather(const ExpertsArgs&, Team);
void experts_up(const ExpertsArgs&, Team);
void experts_down(const ExpertsArgs&, Team);
void experts_combine(const ExpertsArgs&, Team);
void embed(const EmbedArgs&, Team);
void norm(const NormArgs&, Team);
void append_kv(const AppendArgs&, Team);
void attention(const AttentionArgs&, Team);
void attention_merge(const AttentionArgs&, Team);
int argmax_row(const float* row, int n);
double logsumexp_row(const float* row, int n);
int top_row(const float* row, int n, int k, int32_t* ids);
int rank_row(const float* row, int n, int token);
int draw_row(const DrawArgs&, float* weights);

}  // namespace OCTAVO_PATH
}  // namespace octavo
#endif

namespace octavo {

namespace portable {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}

}  // namespace octavo
