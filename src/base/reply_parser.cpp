#include "reply_parser.h"

#include <algorithm>
#include <map>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace reply_parser_impl {
namespace {

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// Takes one newline off the end; crlf: newlines have a carriage return.
std::string_view without_newline(std::string_view value, bool crlf) {
    if (!value.empty() && value.back() == '\n') value.remove_suffix(1);
    if (crlf && !value.empty() && value.back() == '\r') value.remove_suffix(1);
    return value;
}

/// Of an argument that was given twice the last value counts, at the place of the first, as with a key in JSON.
void keep_last(std::vector<ToolArgument>& arguments) {
    std::map<std::string, size_t> places;
    for (ToolArgument& a : arguments) {
        ToolArgument& to = arguments[places.emplace(a.name, places.size()).first->second];
        if (&to != &a) to = std::move(a);
    }
    arguments.resize(places.size());
}

}  // namespace
}  // namespace reply_parser_impl

std::string HeldText::push(std::string_view piece, bool trim_front) {
    held_.append(piece);
    size_t begin = held_.size(), end = 0;  // of the first and the last character that is no white space
    while (n_checked_ < held_.size()) {
        const char* p = held_.data() + n_checked_;
        size_t n = 0;
        if (!is_python_space(decode_utf8(p, held_.size() - n_checked_, &n))) {
            begin = std::min(begin, n_checked_);
            end = n_checked_ + n;
        }
        n_checked_ += n;
    }
    if (end == 0) return std::string();
    const size_t from = trim_front ? begin : 0;
    std::string out = held_.substr(from, end - from);
    held_.erase(0, end);
    n_checked_ -= end;
    return out;
}

void HeldText::cut(size_t n_held) {
    held_.resize(n_held);
    n_checked_ = std::min(n_checked_, n_held);
}

// ------------------------------------------------------------------------------------ reading tags

/// Whether `what` is at this place; `more` if it may turn out to be.
ReplyParser::Match ReplyParser::match(size_t at, std::string_view what) const {
    const std::string_view rest = std::string_view(text_).substr(at, what.size());
    if (rest == what) return Match::yes;
    return !final_ && rest.size() < what.size() && what.substr(0, rest.size()) == rest ? Match::more : Match::no;
}

/// Moves *at behind white space; `more` if it may go on. Where it stops for more text it goes on the next time.
ReplyParser::Match ReplyParser::skip_space(size_t* at) {
    const size_t from = *at;
    if (probe_ == from) *at = probed_;
    while (*at < text_.size() && reply_parser_impl::is_space(text_[*at])) ++*at;
    probe_ = from;
    probed_ = *at;
    return *at == text_.size() && !final_ ? Match::more : Match::yes;
}

/// A name at at_, up to '>' on the same line, without white space around it.
ReplyParser::Match ReplyParser::read_name(std::string* out) {
    size_t end = probe_ == at_ ? probed_ : at_;
    while (end < text_.size() && text_[end] != '>' && text_[end] != '\n' && text_[end] != '<') ++end;
    probe_ = at_;
    probed_ = end;
    if (end == text_.size()) return final_ ? Match::no : Match::more;
    if (text_[end] != '>') return Match::no;
    *out = std::string(trim_space(text(at_, end)));
    if (out->empty()) return Match::no;
    at_ = end + 1;
    return Match::yes;
}

/// Whether a call begins here: <tool_call> followed by <function= or {, or, unless wrapped_only, a bare <function= of a
/// tool in the request.
ReplyParser::Match ReplyParser::candidate(size_t at, bool wrapped_only) {
    using namespace reply_parser_impl;
    const Match call = match(at, kCall);
    if (call == Match::yes) {
        size_t next = at + kCall.size();
        if (skip_space(&next) == Match::more) return Match::more;
        return next < text_.size() && text_[next] == '{' ? Match::yes : match(next, kFunction);
    }
    const Match bare = wrapped_only ? Match::no : match(at, kFunction);
    if (bare != Match::yes) return call == Match::more || bare == Match::more ? Match::more : Match::no;
    const size_t kept = at_;
    std::string name;
    at_ = at + kFunction.size();
    const Match named = read_name(&name);
    at_ = kept;
    return named == Match::yes ? (schemas_.knows(name) ? Match::yes : Match::no) : named;
}

/// The next '<' from at_ on becomes at_.
size_t ReplyParser::find_tag() { return at_ = std::min(text_.find('<', at_), text_.size()); }

// ----------------------------------------------------------------------------------------- events

void ReplyParser::add(ReplyEvent::Kind kind, std::string_view text) {
    if (events_ == nullptr) return;
    const bool pieces = kind == ReplyEvent::Kind::reasoning || kind == ReplyEvent::Kind::text ||
                        kind == ReplyEvent::Kind::call_arguments;
    if (pieces && text.empty()) return;
    if (pieces && !events_->empty() && events_->back().kind == kind && events_->size() != i_cut_) {
        events_->back().text.append(text);
        return;
    }
    ReplyEvent event;
    event.kind = kind;
    if (kind != ReplyEvent::Kind::reasoning && kind != ReplyEvent::Kind::text)
        event.i_call = static_cast<uint32_t>(reply.tool_calls.size());
    event.text = std::string(text);
    events_->push_back(std::move(event));
}

void ReplyParser::say_reasoning(size_t to) {
    const std::string piece = thought_.push(text(given_, to), reply.thinking.empty());
    given_ = to;
    reply.thinking += piece;
    add(ReplyEvent::Kind::reasoning, piece);
}

/// White space at the end of the content of a reply with calls is left out, also that before its first text if a call
/// comes first, and what separates two calls.
void ReplyParser::say_text(size_t to) {
    const bool after_calls = reply.content.empty() && !reply.tool_calls.empty();
    const std::string piece = content_.push(text(given_, to), after_calls);
    given_ = to;
    if (piece.empty()) return;
    blank_ = false;
    reply.content += piece;
    add(ReplyEvent::Kind::text, piece);
}

// --------------------------------------------------------------------------- thinking and content

bool ReplyParser::start() {
    using namespace reply_parser_impl;
    if (skip_space(&at_) == Match::more) return false;
    // Some models open the thinking block although the prompt has already opened it.
    const Match opened = match(at_, kThink);
    if (opened == Match::more) return false;
    if (opened == Match::yes) given_ = at_ += kThink.size();
    at_ = given_;
    state_ = opened == Match::yes || inside_thinking_ ? State::thinking : State::content;
    return true;
}

bool ReplyParser::thinking() {
    using namespace reply_parser_impl;
    const size_t tag = find_tag();
    say_reasoning(tag);
    if (tag == text_.size()) return false;
    const Match closed = match(tag, kThinkEnd);
    if (closed == Match::yes) {
        given_ = at_ += kThinkEnd.size();
        state_ = State::thought;
        return true;
    }
    const Match call = candidate(tag, false);
    if (closed == Match::more || call == Match::more) return false;
    ++at_;
    if (call == Match::yes) state_ = State::thinking_call;
    return true;
}

bool ReplyParser::thinking_call() {
    using namespace reply_parser_impl;
    const size_t tag = find_tag();
    if (tag == text_.size()) {
        if (final_) finish_thinking_call();
        return false;
    }
    const Match closed = match(tag, kThinkEnd);
    if (closed == Match::more) return false;
    if (closed == Match::yes)
        state_ = State::thinking;
    else
        ++at_;
    return true;
}

/// The thinking was never closed: it ends before the first call, if one of them is complete.
void ReplyParser::finish_thinking_call() {
    std::vector<ReplyEvent> events;
    ReplyParser rest(schemas_, false, events_ != nullptr ? &events : nullptr);
    rest.state_ = State::content;
    rest.push(text(given_, text_.size()));
    rest.finish();
    if (rest.reply.tool_calls.empty()) {
        say_reasoning(text_.size());
        return;
    }
    given_ = text_.size();
    reply.content = std::move(rest.reply.content);
    reply.tool_calls = std::move(rest.reply.tool_calls);
    if (events_ == nullptr) return;
    if (rest.i_cut_ != kNowhere) i_cut_ = events_->size() + rest.i_cut_;
    for (ReplyEvent& event : events) events_->push_back(std::move(event));
}

bool ReplyParser::thought() {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) ++at_;
    given_ = at_;
    if (at_ == text_.size()) return false;
    state_ = State::content;
    return true;
}

bool ReplyParser::content() {
    const size_t tag = find_tag();
    say_text(tag);
    if (tag == text_.size()) return false;
    switch (candidate(tag, false)) {
        case Match::more: return false;
        case Match::yes: return begin_call(tag);
        case Match::no: break;
    }
    ++at_;
    return true;
}

// ------------------------------------------------------------------------------------------ calls

bool ReplyParser::begin_call(size_t at) {
    using namespace reply_parser_impl;
    call_ = ToolCall();
    began_ = false;
    wrapped_ = match(at, kCall) == Match::yes;
    if (wrapped_) {
        at_ = at + kCall.size();
        (void)skip_space(&at_);
    }
    xml_ = text_[at_] != '{';
    if (xml_) at_ += kFunction.size();
    inside_ = at_;
    in_string_ = escaped_ = false;
    state_ = xml_ ? State::name : State::json;
    return true;
}

/// The call stays in the content. The next one may begin inside it. One that fails at the end of the reply was cut
/// there, and all that follows is inside it.
bool ReplyParser::fail_call() {
    if (xml_) lost_[wrapped_] = std::max(lost_[wrapped_], at_);
    if (began_) add(ReplyEvent::Kind::call_dropped, {});
    if (final_ && events_ != nullptr) i_cut_ = std::min(i_cut_, events_->size());
    at_ = inside_;
    state_ = State::content;
    return true;
}

bool ReplyParser::finish_call() {
    if (xml_) {
        add(ReplyEvent::Kind::call_arguments, call_.arguments.empty() ? "{}" : "}");
        add(ReplyEvent::Kind::call_end, {});
        reply_parser_impl::keep_last(call_.arguments);
    }
    if (blank_) content_.cut(n_held_before_);
    blank_ = true;
    n_held_before_ = content_.n_held();
    reply.tool_calls.push_back(std::move(call_));
    given_ = at_;
    state_ = State::content;
    return true;
}

bool ReplyParser::call_name() {
    const Match named = read_name(&call_.name);
    if (named == Match::more) return false;
    if (named == Match::no) return fail_call();
    began_ = true;
    add(ReplyEvent::Kind::call_begin, call_.name);
    state_ = State::tags;
    return true;
}

bool ReplyParser::tags() {
    using namespace reply_parser_impl;
    if (skip_space(&at_) == Match::more) return false;
    const Match parameter = match(at_, kParameter), function_end = match(at_, kFunctionEnd),
                call_end = match(at_, kCallEnd);
    if (parameter == Match::yes) {
        at_ += kParameter.size();
        state_ = State::parameter;
    } else if (function_end == Match::yes) {
        at_ += kFunctionEnd.size();
        state_ = State::closing;
    } else if (call_end == Match::yes) {
        at_ += kCallEnd.size();
        return finish_call();
    } else if (parameter == Match::more || function_end == Match::more || call_end == Match::more) {
        return false;
    } else {
        return fail_call();
    }
    return true;
}

bool ReplyParser::closing() {
    using namespace reply_parser_impl;
    if (skip_space(&at_) == Match::more) return false;
    const Match end = match(at_, kCallEnd);
    if (end == Match::more) return false;
    if (end == Match::yes) at_ += kCallEnd.size();
    return finish_call();
}

bool ReplyParser::parameter_name() {
    const Match named = read_name(&argument_);
    if (named == Match::more) return false;
    if (named == Match::no) return fail_call();
    state_ = State::value_begin;
    return true;
}

/// A call that is quoted inside one that failed, and has a value on lines of its own, ends that value at the same tag
/// and fails at the same place. It fails here at once: reading on for each quoted call would take quadratic time.
bool ReplyParser::value_begin() {
    size_t at = at_;
    crlf_ = at < text_.size() && text_[at] == '\r';
    if (crlf_) ++at;
    if (at == text_.size() && !final_) return false;
    on_lines_ = at < text_.size() && text_[at] == '\n';
    if (on_lines_) ++at;
    if (on_lines_ && at < lost_[wrapped_]) return fail_call();
    at_ = value_ = value_given_ = at;
    begin_argument();
    state_ = State::value;
    return true;
}

void ReplyParser::begin_argument() {
    using namespace reply_parser_impl;
    passed_ = Passed::whole;
    if (events_ == nullptr) return;
    const ArgumentForm form = schemas_.form_of(call_.name, argument_);
    if (form == ArgumentForm::text) passed_ = Passed::at_once;
    if (form == ArgumentForm::nullable_text) passed_ = Passed::unless_null;
    const bool quoted = passed_ == Passed::at_once;
    add(ReplyEvent::Kind::call_arguments,
        say(call_.arguments.empty() ? "{" : ", ", '"', json_escaped(argument_), quoted ? "\": \"" : "\": "));
}

/// Opens a string that may also be null once its text up to `to` is neither null nor None, nor can become it.
void ReplyParser::decide_value(size_t to) {
    while (passed_ == Passed::unless_null || passed_ == Passed::maybe_null) {
        for (size_t n = 0; value_given_ < to; value_given_ += n)
            if (!is_python_space(decode_utf8(text_.data() + value_given_, to - value_given_, &n))) break;
        if (value_given_ == to) return;
        Match word = Match::no;
        for (const std::string_view null : {"null", "None"})
            if (passed_ == Passed::unless_null && word == Match::no) word = match(value_given_, null);
        if (word == Match::more) return;
        if (word == Match::yes) {
            value_given_ += 4;
            passed_ = Passed::maybe_null;
        } else {
            value_given_ = value_;
            passed_ = Passed::at_once;
            add(ReplyEvent::Kind::call_arguments, "\"");
        }
    }
}

/// Passes on what surely is a part of the value: all up to `to` but a newline, which may be its end.
void ReplyParser::stream_value(size_t to) {
    using namespace reply_parser_impl;
    decide_value(to);
    if (passed_ != Passed::at_once) return;
    const size_t end = value_ + without_newline(text(value_, to), crlf_).size();
    if (end <= value_given_) return;
    add(ReplyEvent::Kind::call_arguments, json_escaped(text(value_given_, end)));
    value_given_ = end;
}

void ReplyParser::finish_argument(size_t end) {
    using namespace reply_parser_impl;
    stream_value(end);
    ToolArgument argument = schemas_.typed(call_.name, std::move(argument_), without_newline(text(value_, end), crlf_));
    if (passed_ == Passed::at_once)
        add(ReplyEvent::Kind::call_arguments, "\"");
    else if (events_ != nullptr)
        add(ReplyEvent::Kind::call_arguments, argument.json ? argument.value : json_quoted(argument.value));
    call_.arguments.push_back(std::move(argument));
}

/// Whether *at, behind a closing tag, is followed by another parameter or the end of the function; moves it there.
ReplyParser::Match ReplyParser::after_value(size_t* at) {
    using namespace reply_parser_impl;
    if (skip_space(at) == Match::more) return Match::more;
    Match any = Match::no;
    for (const std::string_view tag : {kParameter, kFunctionEnd, kCallEnd}) {
        const Match m = match(*at, tag);
        if (m == Match::yes) return m;
        if (m == Match::more) any = m;
    }
    return any;
}

/// A value ends at a closing tag that is followed by another parameter or the end of the function, so that it may
/// itself hold closing tags. A call ends where the next one begins, so that a malformed call cannot hide a good one.
/// Where the value begins on a line of its own, calls that it quotes within a line are a part of it: of two tags that
/// follow each other one begins a line, and so does the next call.
bool ReplyParser::value() {
    using namespace reply_parser_impl;
    const size_t tag = find_tag();
    stream_value(tag);
    if (tag == text_.size()) return final_ && fail_call();
    const bool begins_line = !on_lines_ || tag == value_ || text_[tag - 1] == '\n';
    const Match end = match(tag, kParameterEnd);
    if (end == Match::more) return false;
    if (end == Match::yes) {
        size_t after = tag + kParameterEnd.size();
        const Match ended = after_value(&after);
        if (ended == Match::more) return false;
        if (ended == Match::yes && (begins_line || text(tag, after).find('\n') != std::string_view::npos)) {
            finish_argument(tag);
            at_ = after;
            state_ = State::tags;
            return true;
        }
    } else if (begins_line) {
        const Match call = candidate(tag, wrapped_);
        if (call == Match::more) return false;
        if (call == Match::yes) return fail_call();
    }
    ++at_;
    return true;
}

/// {"name": ..., "arguments": {...}}, the form of older models, up to </tool_call>, the next call or the end. A tag in
/// a string is text. What is no JSON fails at once: calls that misread each other's quotes would be read again and
/// again.
bool ReplyParser::json() {
    using namespace reply_parser_impl;
    for (; at_ < text_.size(); ++at_) {
        const char c = text_[at_];
        if (in_string_) {
            if (static_cast<unsigned char>(c) < 0x20) return fail_call();
            in_string_ = escaped_ || c != '"';
            escaped_ = !escaped_ && c == '\\';
        } else if (c == '\\') {
            return fail_call();
        } else if (c == '"') {
            in_string_ = true;
        } else if (c == '<') {
            const Match end = match(at_, kCallEnd), call = candidate(at_, true);
            if (end == Match::yes || call == Match::yes) return finish_json(at_);
            if (end == Match::more || call == Match::more) return false;
        }
    }
    return final_ && finish_json(at_);
}

bool ReplyParser::finish_json(size_t end) {
    using namespace reply_parser_impl;
    Json value;
    if (!Json::parse(text(inside_, end)).get(value).ok()) return fail_call();
    const Json* name = value.find("name");
    const Json* arguments = value.find("arguments");
    if (name == nullptr || !name->is(Json::Kind::string)) return fail_call();
    if (arguments != nullptr && !arguments->is(Json::Kind::object)) return fail_call();
    call_.name = name->text();
    for (size_t i = 0; arguments != nullptr && i < arguments->items().size(); ++i)
        call_.arguments.push_back(argument_of(arguments->keys()[i], arguments->items()[i]));
    add(ReplyEvent::Kind::call_begin, call_.name);
    add(ReplyEvent::Kind::call_arguments, arguments != nullptr ? arguments->dump(Json::Numbers::written) : "{}");
    add(ReplyEvent::Kind::call_end, {});
    at_ = end;
    if (match(end, kCallEnd) == Match::yes) at_ += kCallEnd.size();
    return finish_call();
}

// -------------------------------------------------------------------------------------- the stream

bool ReplyParser::in_thinking() const {
    if (state_ == State::start) return inside_thinking_;
    return state_ == State::thinking || state_ == State::thinking_call;
}

/// One step; false: more text is needed.
bool ReplyParser::step() {
    switch (state_) {
        case State::start: return start();
        case State::thinking: return thinking();
        case State::thinking_call: return thinking_call();
        case State::thought: return thought();
        case State::content: return content();
        case State::name: return call_name();
        case State::tags: return tags();
        case State::parameter: return parameter_name();
        case State::value_begin: return value_begin();
        case State::value: return value();
        case State::closing: return closing();
        case State::json: break;
    }
    return json();
}

/// Drops what was given out, once it is half of the text.
void ReplyParser::compact() {
    if (given_ == 0 || given_ < text_.size() / 2) return;
    const size_t n = given_;
    text_.erase(0, n);
    for (size_t* at : {&at_, &given_, &inside_, &value_, &value_given_, &lost_[0], &lost_[1]}) *at -= std::min(*at, n);
    probe_ = kNowhere;
}

void ReplyParser::push(std::string_view piece) {
    bytes_.append(piece);
    text_ += take_characters(bytes_, false);
    while (step()) {
    }
    compact();
}

void ReplyParser::finish() {
    final_ = true;
    if (state_ == State::value) passed_ = Passed::whole;  // what is held back may be the beginning of its closing tag
    text_ += take_characters(bytes_, true);
    while (step()) {
    }
    if (state_ == State::thinking || state_ == State::thinking_call) return say_reasoning(given_);
    say_text(given_);
    if (!reply.tool_calls.empty()) return;
    const std::string space = content_.take();
    reply.content += space;
    add(ReplyEvent::Kind::text, space);
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
