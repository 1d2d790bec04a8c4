// The table of this path's kernels.
#include "kernels.h"

#define OCTAVO_TEXT_(x) #x
#define OCTAVO_TEXT(x) OCTAVO_TEXT_(x)

namespace octavo {
namespace OCTAVO_PATH {

const Kernels kernels = {OCTAVO_TEXT(OCTAVO_PATH),
                         linear,
                         {experts_route, experts_group, experts_gather, experts_up, experts_down, experts_combine},
                         embed,
                         norm,
                         append_kv,
                         attention,
                         attention_merge,
                         argmax_row,
                         logsumexp_row,
                         top_row,
                         rank_row,
                         draw_row};

}  // namespace OCTAVO_PATH
}  // namespace octavo
