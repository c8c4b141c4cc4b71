// cli/branches: the versions of a conversation that were left by taking messages back or changing them.
#pragma once
#include "common.h"

namespace cli {

using Messages = std::vector<auspex::ChatMessage>;

/// How many messages the user wrote.
size_t n_said(const Messages& messages);
/// The index of the user's message number `i`, from 1. errors: bad_argument: there is none; the text says how many.
Result<size_t> find_said(const Messages& messages, const std::string& i);
/// The user's messages with their numbers, a line each.
std::string list_said(const Messages& messages);

class Branches {
  public:
    /// Before the conversation is shortened: what it was stays as a branch.
    void leave(const Messages& live);
    /// Makes branch `i`, from 1, the conversation. errors: bad_argument: there is none; the text says how many.
    Status go_to(const std::string& i, Messages* live);
    /// A line for each branch.
    std::string list(const Messages& live);
    void clear() { *this = Branches(); }
    /// All but the conversation itself, to be saved; and back.
    std::vector<Messages> others() const;
    void set_others(std::vector<Messages> others);

  private:
    void store(const Messages& live);
    std::vector<Messages> all_{1};
    size_t now_ = 0;  ///< the conversation itself; what all_ has there is out of date
};

}  // namespace cli
