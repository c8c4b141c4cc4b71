// base/reply_parser: splits a reply into thinking, content and tool calls while it is generated.
//
// Owns    the parser behind ReplyStream and parse_reply. Its decisions do not depend on how the text was cut into
//         pieces: where a decision needs more text it waits, and what is undecided is held back.
// Thread  a parser belongs to one stream.
// Tests   tests/test_chat.cpp, tests/test_reply_stream.cpp, tests/fuzz_chat.cpp
#pragma once
#include "chat.h"
#include "text_stream.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

/// The argument types that the request's tools declare.
class ToolSchemas {
  public:
    explicit ToolSchemas(const std::vector<std::string>& tools);
    bool knows(std::string_view tool) const { return function(tool) != nullptr; }
    /// How an argument is read, which says how early it can be passed on.
    ArgumentForm form_of(std::string_view tool, std::string_view name) const { return type_of(tool, name).form; }
    /// An argument with its type, by its ArgumentForm.
    ToolArgument typed(std::string_view tool, std::string name, std::string_view text) const;

  private:
    const Json* function(std::string_view name) const;
    ArgumentType type_of(std::string_view tool, std::string_view name) const;
    std::vector<Json> tools_;
};

/// Text that arrives in pieces, without the white space at its end until other text follows.
class HeldText {
  public:
    /// Appends `piece`, whole characters, and returns what ends in no white space and was not returned before.
    /// trim_front: leaves out the white space in front.
    std::string push(std::string_view piece, bool trim_front);
    /// The white space that is held.
    std::string take() { return std::exchange(n_checked_, size_t{0}), std::exchange(held_, std::string()); }
    size_t n_held() const { return held_.size(); }
    void cut(size_t n_held);

  private:
    std::string held_;
    size_t n_checked_ = 0;  ///< bytes of it that are white space
};

class ReplyParser {
  public:
    /// events: receives what becomes known, unless null; the caller may empty it between calls.
    ReplyParser(const ToolSchemas& schemas, bool inside_thinking, std::vector<ReplyEvent>* events)
        : schemas_(schemas), events_(events), inside_thinking_(inside_thinking) {}

    /// cost      linear in the text over all calls together.
    void push(std::string_view piece);
    /// No more text follows.
    void finish();
    bool finished() const { return final_; }
    bool in_thinking() const;
    /// Index of the first event of finish() that is text of a call cut by the end; past the last one if there is none.
    size_t i_cut() const { return i_cut_; }

    ChatReply reply;  ///< complete after finish()

  private:
    enum class State {
        start,          ///< before anything but white space
        thinking,       ///< inside <think>
        thinking_call,  ///< the same after the beginning of a call, which counts if the thinking is never closed
        thought,        ///< newlines after </think>
        content,        ///< between calls
        name,           ///< after <function=
        tags,           ///< before <parameter=, </function> or </tool_call>
        parameter,      ///< after <parameter=
        value_begin,    ///< before the first character of a value
        value,          ///< inside a value
        closing,        ///< after </function>
        json,           ///< inside <tool_call>{
    };
    enum class Match { no, yes, more };
    /// When an argument is passed on.
    enum class Passed {
        whole,        ///< when it is complete
        unless_null,  ///< as text once it cannot be null; so far it is white space
        maybe_null,   ///< the same; so far it is `null` or `None` and white space
        at_once,      ///< as text that arrives
    };

    bool step();
    bool start();
    bool thinking();
    bool thinking_call();
    bool thought();
    bool content();
    bool call_name();
    bool tags();
    bool parameter_name();
    bool value_begin();
    bool value();
    bool closing();
    bool json();

    Match match(size_t at, std::string_view what) const;
    Match skip_space(size_t* at);
    Match candidate(size_t at, bool wrapped_only);
    Match after_value(size_t* at);
    Match read_name(std::string* out);
    bool begin_call(size_t at);
    bool fail_call();
    bool finish_call();
    bool finish_json(size_t end);
    void begin_argument();
    void decide_value(size_t to);
    void stream_value(size_t to);
    void finish_argument(size_t end);
    void finish_thinking_call();

    std::string_view text(size_t from, size_t to) const { return std::string_view(text_).substr(from, to - from); }
    size_t find_tag();
    void say_reasoning(size_t to);
    void say_text(size_t to);
    void add(ReplyEvent::Kind kind, std::string_view text);
    void compact();

    const ToolSchemas& schemas_;
    std::vector<ReplyEvent>* events_;
    bool inside_thinking_, final_ = false;
    State state_ = State::start;
    std::string bytes_;        ///< of a character that goes on in the next piece
    std::string text_;         ///< not given out yet: whole characters
    size_t at_ = 0;            ///< where to go on reading
    size_t given_ = 0;         ///< given out up to here; the beginning of the call while one is read
    size_t inside_ = 0;        ///< where to look for the next call if this one fails
    size_t probe_ = kNowhere;  ///< a place whose white space or name was read up to probed_, to go on there
    size_t probed_ = 0;
    size_t lost_[2] = {0, 0};  ///< the farthest place where a bare call failed, and one in <tool_call>
    static constexpr size_t kNowhere = ~size_t{0};
    size_t i_cut_ = kNowhere;  ///< i_cut()

    // The call that is being read.
    ToolCall call_;
    std::string argument_;    ///< name of the one that is being read
    size_t value_ = 0;        ///< where it begins
    size_t value_given_ = 0;  ///< what was passed on of it; before that, what may be null
    bool crlf_ = false;       ///< the newline before it has a carriage return, so the one after it does
    bool on_lines_ = false;   ///< there is a newline before it, so tags of the call are at the beginnings of lines
    bool wrapped_ = false;    ///< in <tool_call>
    bool xml_ = false;        ///< begun with <function=
    bool began_ = false;      ///< call_begin was said
    bool in_string_ = false, escaped_ = false;  ///< at_ is in a JSON string; behind a backslash there
    Passed passed_ = Passed::whole;             ///< the argument that is being read

    HeldText thought_, content_;
    bool blank_ = true;         ///< no text since the last call but white space
    size_t n_held_before_ = 0;  ///< white space held when it ended
};

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
