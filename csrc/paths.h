// Which instruction paths this build holds and this machine can run.
#pragma once
#include <string>
#include <vector>

#include "abi.h"

namespace octavo {

// Best first.  The portable path is always last.  The processor and the operating system (saved registers) are both asked.
std::vector<const Kernels*> available_paths();

// The path of that name; the best one for an empty name.  Throws std::invalid_argument.
const Kernels* find_path(const std::string& name);

}  // namespace octavo
