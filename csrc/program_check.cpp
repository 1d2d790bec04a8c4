// What a batch must keep to, so that a wrong id raises and never reads or writes outside.
#include <stdexcept>
#include <string>

#include "program.h"

namespace octavo {

namespace {

std::string text(int64_t n) { return std::to_string(n); }

void require(bool holds, const char* what, int64_t where, int64_t value, int64_t limit) {
  if (holds) return;
  throw std::invalid_argument(std::string(what) + " " + text(where) + " is " + text(value) + "; the limit is " + text(limit));
}

}  // namespace

void Program::check(const BatchInput& b) const {
  require(b.num_tokens <= limits_.max_tokens, "the number of tokens of batch", 0, b.num_tokens, limits_.max_tokens);
  for (int i = 0; i < b.num_tokens; i++)
    require(b.token_ids[i] >= 0 && b.token_ids[i] < limits_.vocab_size, "the token id of row", i, b.token_ids[i],
            limits_.vocab_size - 1);
  require(b.q_start[0] == 0, "q_start of sequence", 0, b.q_start[0], 0);
  require(b.q_start[b.num_seqs] == b.num_tokens, "q_start's end, at", b.num_seqs, b.q_start[b.num_seqs], b.num_tokens);
  const int page_tokens = 16, block_tokens = page_tokens * arena_.pages_per_block;
  for (int s = 0; s < b.num_seqs; s++) {
    const int64_t length = int64_t(b.q_start[s + 1]) - b.q_start[s], end = b.start[s] + length;
    require(length >= 0, "the row count of sequence", s, length, 0);
    require(b.start[s] >= 0, "the first position of sequence", s, b.start[s], 0);
    require(end <= limits_.max_positions, "the last position of sequence", s, end - 1, limits_.max_positions - 1);
    require(b.row[s] >= 0 && b.row[s] < b.table_rows, "the table row of sequence", s, b.row[s], b.table_rows - 1);
    if (length == 0) continue;
    const int64_t blocks = (end + block_tokens - 1) / block_tokens;
    const int32_t* table = b.tables + int64_t(b.row[s]) * b.table_columns;
    if (b.contiguous) {
      require(b.table_columns >= 1, "the width of the block table for sequence", s, b.table_columns, 1);
      require(table[0] >= 0 && table[0] + blocks <= arena_.num_blocks, "the last block of sequence", s, table[0] + blocks - 1,
              arena_.num_blocks - 1);
      continue;
    }
    require(blocks <= b.table_columns, "the number of blocks of sequence", s, blocks, b.table_columns);
    for (int64_t i = 0; i < blocks; i++)
      require(table[i] >= 0 && table[i] < arena_.num_blocks, "a block id of sequence", s, table[i], arena_.num_blocks - 1);
  }
}

void Program::check_rows(const int32_t* rows, int count) const {
  require(count <= limits_.max_logit_rows, "the number of logit rows of batch", 0, count, limits_.max_logit_rows);
  for (int i = 0; i < count; i++)
    require(rows[i] >= 0 && rows[i] < batch_.num_tokens, "the hidden row of logit row", i, rows[i], batch_.num_tokens - 1);
}

void Program::check_copies(const int32_t* pairs, int count) const {
  for (int i = 0; i < 2 * count; i++)
    require(pairs[i] >= 0 && pairs[i] < arena_.num_blocks, "the block id of copy", i / 2, pairs[i], arena_.num_blocks - 1);
}

}  // namespace octavo
