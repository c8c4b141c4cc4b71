// server/stops: the strings that end a reply, in text that comes in pieces.
//
// Thread  one filter belongs to one reply.
// Tests   tests/test_server_openai.py
#pragma once
#include <string>
#include <vector>

namespace server {

/// Holds back what may begin a stop string. The algorithm of Knuth, Morris and Pratt.
class StopFilter {
  public:
    /// No string is empty.
    explicit StopFilter(const std::vector<std::string>& stops);
    /// What no stop string can begin in any more, of this text and of what was held. At the first complete stop string:
    /// the text before it, and nothing from then on. Of two that end at one place the longer counts.
    /// cost      linear in `text` for each stop string, over all calls together.
    std::string push(const std::string& text);
    /// What is held: the text ends here.
    std::string flush();
    /// The stop string that ended the text, or null.
    const std::string* found() const { return found_; }

  private:
    struct Stop {
        std::string text;
        std::vector<size_t> border;  ///< [i]: length of the longest border of the first i + 1 bytes
        size_t n_match = 0;          ///< bytes of it that the text so far ends with
    };
    static size_t next_match(const Stop& stop, size_t n, char byte);
    std::vector<Stop> stops_;
    std::string held_;
    const std::string* found_ = nullptr;
};

}  // namespace server
