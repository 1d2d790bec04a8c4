#include "paths.h"

#include <stdexcept>

#include "kernels.h"

namespace octavo {

std::vector<const Kernels*> available_paths() {
  std::vector<const Kernels*> found;
#if defined(OCTAVO_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16")) found.push_back(&avx512_bf16::kernels);
  if (avx512) found.push_back(&avx512::kernels);
  if (avx2) found.push_back(&avx2::kernels);
#endif
  found.push_back(&portable::kernels);
  return found;
}

const Kernels* find_path(const std::string& name) {
  for (const Kernels* kernels : available_paths())
    if (name.empty() || name == kernels->name) return kernels;
  throw std::invalid_argument("the instruction path " + name + " isn't one that this machine can run");
}

}  // namespace octavo
