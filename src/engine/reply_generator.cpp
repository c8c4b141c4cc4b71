#include "../base/reply_parser.h"
#include "session.h"

AUSPEX_SMALL_CODE_BEGIN

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace reply_generator_impl {
namespace {

/// What a template writes between a thinking and its answer.
constexpr std::string_view kCloseThinking = "\n</think>\n\n";

ReplyEvent text_event(std::string text) {
    ReplyEvent event;
    event.text = std::move(text);
    return event;
}

}  // namespace
}  // namespace reply_generator_impl

struct ReplyGenerator::Impl {
    AUSPEX_NOINLINE Impl(const Model& of, Session& on, ReplyOptions&& given)
        : model(of),
          session(on),
          options(std::move(given)),
          history(on.history().begin(), on.history().end()),
          n_prompt(history.size()),
          schemas(options.tools),
          parser(schemas, options.inside_thinking, &parsed),
          stops(options.stops),
          thinking(options.inside_thinking),
          may_open(options.parse && !thinking) {
        if (options.max_tokens == 0) finish = Finish::length;
        begin_character();
        if (options.free_thinking && thinking) std::swap(after_thinking, options.sampling.constraint);
        // From the end of the prompt, not from the first next(): the text that closes the thinking is constrained, too.
        if (options.sampling.constrained_from == kFromHere) options.sampling.constrained_from = n_prompt;
    }

    AUSPEX_NOINLINE ~Impl() = default;

    Status usable() const {
        return finish == Finish::none && !finished
                   ? Status()
                   : Status(Code::bad_argument, "the reply has ended; make another ReplyGenerator for the next one");
    }
    size_t n_token() const { return history.size() - n_prompt - (finish == Finish::end ? 1 : 0); }
    bool is_over_budget() const { return thinking && n_token() >= options.max_thinking_tokens; }
    bool is_one_by_one() const { return options.one_by_one && !thinking; }
    /// Tokens until the reply reaches a limit: none beyond them is of use.
    uint64_t n_wanted() const {
        if (is_one_by_one()) return 1;  // drafts beyond it would be taken back, and verified again by the next step
        const uint64_t end = thinking ? std::min(options.max_tokens, options.max_thinking_tokens) : options.max_tokens;
        return std::max<uint64_t>(end, n_token() + 1) - n_token();
    }

    void begin_character();
    Status step();
    Status go_on(Token id);
    Status sample();
    bool is_refused() const;
    Status pause();
    Status close_if_due();
    Status close_thinking(bool goes_on);
    Status append(Span<const Token> ids, bool goes_on);
    Status take(Span<const Token> ids, bool sampled);
    Status take_one(Token id, const std::string& piece);
    std::string find_end_of_thinking(Token id, const std::string& piece);
    Status take_back();
    Status say_text(const std::string& piece);
    Status say(std::vector<ReplyEvent> parts, size_t i_cut);
    void say_content(std::string piece);
    Status end();

    const Model& model;  // no copy, which would keep the memory of a lost device
    Session& session;
    ReplyOptions options;
    std::vector<Token> history;  ///< prompt and reply so far; the session's may be longer by what was drafted
    size_t n_prompt;             ///< tokens of it
    std::string bytes;           ///< of an unfinished character; one that stays so is not shown
    detail::ToolSchemas schemas;
    std::vector<ReplyEvent> parsed;  ///< by the parser, and not said yet
    detail::ReplyParser parser;
    StopFilter stops;  ///< in the content
    bool thinking;
    bool may_open;                   ///< the model may begin with thinking
    bool closed = false;             ///< the thinking, by the last step
    std::string close;               ///< what closes the thinking, to be written next
    size_t n_thinking = 0;           ///< tokens up to the end of the thinking's text
    size_t max_thinking = SIZE_MAX;  ///< what the tokens of `close` come after
    std::string thought;             ///< the end of the thinking so far
    Constraint after_thinking;       ///< waits for the end of the thinking
    std::vector<ReplyEvent> events;  ///< not returned yet
    std::string content;             ///< of all events
    size_t n_call = 0;               ///< complete ones of all events
    Finish finish = Finish::none;
    bool finished = false;  ///< finish() was called
    ChatReply reply;
};

/// A prompt of tokens may end inside a character, which the reply then shows whole.
void ReplyGenerator::Impl::begin_character() {
    constexpr size_t kMaxTokens = 4;  // the bytes of a character
    const size_t n = std::min(n_prompt, kMaxTokens);
    const Span<const Token> end(history.data() + n_prompt - n, n);
    if (model.decode(end, DecodeOptions{true}).get(bytes).ok()) (void)detail::take_characters(bytes, false);
}

Status ReplyGenerator::Impl::step() {
    if (close.empty() && !is_over_budget()) AUSPEX_TRY(sample());
    return close_if_due();
}

Status ReplyGenerator::Impl::go_on(Token id) {
    AUSPEX_TRY(close_if_due());
    if (finish != Finish::none) return {};
    const Span<const Token> ids(&id, 1);
    AUSPEX_TRY(append(ids, true));
    return take(ids, false);
}

/// Tokens that were sampled ahead belong to the reply: the session's state is already past them.
Status ReplyGenerator::Impl::pause() {
    if (!session) return {};
    AUSPEX_TRY(session.impl()->drain());
    const detail::Timeline& timeline = session.impl()->timeline;
    const auto takes_more = [&] {
        return finish == Finish::none && close.empty() && !is_over_budget() && !is_one_by_one();
    };
    while (takes_more() && timeline.size() > timeline.n_given()) AUSPEX_TRY(sample());
    return close_if_due();
}

Status ReplyGenerator::Impl::close_if_due() {
    if (close.empty() && is_over_budget()) close = reply_generator_impl::kCloseThinking;
    return close.empty() || finish != Finish::none ? Status() : close_thinking(true);
}

Status ReplyGenerator::Impl::sample() {
    AUSPEX_TRY(take_back());
    Span<const Token> ids;
    const Status s = session.next(options.sampling, n_wanted()).get(ids);
    if (s.code == Code::context_full) {
        finish = Finish::context;
        return {};
    }
    if (s.code == Code::bad_argument && closed && is_refused())
        return detail::fail(
            Code::bad_argument,
            "the grammar does not allow the text that closes the thinking after max_thinking_tokens: a line "
            "feed, </think> and a blank line. Allow it, or set free_thinking. ",
            s.text);
    AUSPEX_TRY(s);
    closed = false;
    return take(ids, true);
}

/// The constraint does not allow the reply so far.
bool ReplyGenerator::Impl::is_refused() const {
    const Sampling& how = options.sampling;
    std::unique_ptr<detail::TextState> text;
    if (!how.constraint || how.constrained_from > history.size() || !how.constraint.impl()->begin().get(text).ok())
        return false;
    const auto first = history.begin() + static_cast<std::ptrdiff_t>(how.constrained_from);
    return !std::all_of(first, history.end(), [&](Token id) { return text->accept(id); });
}

/// Writes `close` in place of what was sampled beyond the last token. What constrains the answer begins after it.
Status ReplyGenerator::Impl::close_thinking(bool goes_on) {
    std::vector<Token> ids;
    AUSPEX_TRY(model.encode(close, EncodeOptions{true}).get(ids));
    AUSPEX_TRY(append(ids, goes_on));
    close.clear();
    if (finish != Finish::none) return {};
    thinking = false;
    max_thinking = n_token();
    closed = !after_thinking;
    if (after_thinking) {
        options.sampling.constraint = std::exchange(after_thinking, Constraint());
        options.sampling.constrained_from = history.size() + ids.size();
    }
    return take(ids, false);
}

/// Makes the session's history the reply so far and `ids`, if the reply goes on; or ends it where they do not fit.
Status ReplyGenerator::Impl::append(Span<const Token> ids, bool goes_on) {
    std::vector<Token> longer = history;
    longer.insert(longer.end(), ids.begin(), ids.end());
    const Session::Impl* of_session = session.impl();
    if (of_session && longer.size() > of_session->options.n_context) {
        finish = Finish::context;
        return {};
    }
    return goes_on ? session.sync(longer).status() : Status();
}

/// Takes tokens that follow in the history, until the reply ends or its thinking is to be closed.
Status ReplyGenerator::Impl::take(Span<const Token> ids, bool sampled) {
    size_t n_taken = 0;
    for (const Token id : ids) {
        if (finish != Finish::none || is_over_budget()) break;
        if (sampled && is_one_by_one() && n_taken > 0) break;
        std::string piece;
        AUSPEX_TRY(model.decode(Span<const Token>(&id, 1), DecodeOptions{options.special}).get(piece));
        if (thinking) {
            std::string end = find_end_of_thinking(id, piece);
            thinking = end.empty();
            if (!thinking && after_thinking) {
                close = std::move(end);
                break;
            }
        }
        AUSPEX_TRY(take_one(id, piece));
        ++n_taken;
    }
    return {};
}

Status ReplyGenerator::Impl::take_one(Token id, const std::string& piece) {
    history.push_back(id);
    if (model.is_end(id) && !options.ignore_end) {
        finish = Finish::end;
        return {};
    }
    bytes += piece;
    AUSPEX_TRY(say_text(detail::take_characters(bytes, false)));
    if (may_open && parser.in_thinking()) {
        thinking = true;
        may_open = false;
    }
    if (stops.found())
        finish = Finish::stop;
    else if (n_token() >= options.max_tokens)
        finish = Finish::length;
    return {};
}

/// If the thinking ends within this token: the token's text up to there and the blank line with which an answer begins.
/// Tokens after it were sampled without the answer's constraint.
std::string ReplyGenerator::Impl::find_end_of_thinking(Token id, const std::string& piece) {
    constexpr std::string_view kTag = "</think>";  // shown whatever DecodeOptions say
    if (model.is_end(id) && !options.ignore_end) return std::string(reply_generator_impl::kCloseThinking);
    const size_t n_before = thought.size();
    thought += piece;
    const size_t at = thought.find(kTag);
    std::string end;
    if (at != std::string::npos) end = thought.substr(n_before, at + kTag.size() - n_before) + "\n\n";
    if (thought.size() >= kTag.size()) thought.erase(0, thought.size() - kTag.size() + 1);
    return end;
}

/// Makes the session's history the reply so far: drops tokens that were drafted beyond it, and brings back those that
/// the session lost where a sync() was cancelled.
Status ReplyGenerator::Impl::take_back() {
    return session.history().size() != history.size() ? session.sync(history).status() : Status();
}

Status ReplyGenerator::Impl::say_text(const std::string& piece) {
    if (piece.empty()) return {};
    if (options.parse)
        parser.push(piece);
    else
        parsed.push_back(reply_generator_impl::text_event(piece));
    return say(std::exchange(parsed, {}), SIZE_MAX);
}

/// Passes parts of the reply on, up to a stop string in its content. No stop string spans a call.
/// i_cut     text from this part on belongs to a call that was cut: stop strings are not looked for in it.
Status ReplyGenerator::Impl::say(std::vector<ReplyEvent> parts, size_t i_cut) {
    for (size_t i = 0; i < parts.size() && !stops.found(); ++i) {
        ReplyEvent& part = parts[i];
        const bool is_text = part.kind == ReplyEvent::Kind::text, is_cut = i >= i_cut;
        std::string piece;
        AUSPEX_TRY((is_text && !is_cut ? stops.push(part.text) : stops.finish()).get(piece));
        say_content(std::move(piece));
        if (is_text && is_cut) say_content(std::move(part.text));
        if (part.kind == ReplyEvent::Kind::call_end) ++n_call;
        if (part.kind == ReplyEvent::Kind::reasoning) n_thinking = std::min(n_token(), max_thinking);
        if (!is_text) events.push_back(std::move(part));
    }
    return {};
}

void ReplyGenerator::Impl::say_content(std::string piece) {
    if (piece.empty()) return;
    content += piece;
    events.push_back(reply_generator_impl::text_event(std::move(piece)));
}

Status ReplyGenerator::Impl::end() {
    if (finish == Finish::none && !close.empty()) AUSPEX_TRY(close_thinking(false));
    parser.finish();
    AUSPEX_TRY(say(std::exchange(parsed, {}), parser.i_cut()));
    std::string held;
    AUSPEX_TRY(stops.finish().get(held));
    say_content(std::move(held));
    reply = parser.reply;
    if (stops.found()) {  // what came after it is no part of the reply
        finish = Finish::stop;
        reply.tool_calls.resize(n_call);
    }
    if (stops.found() || !options.parse) reply.content = std::move(content);
    finished = true;
    return {};
}

ReplyGenerator::ReplyGenerator() noexcept = default;
ReplyGenerator::~ReplyGenerator() = default;
ReplyGenerator::ReplyGenerator(ReplyGenerator&&) noexcept = default;
ReplyGenerator& ReplyGenerator::operator=(ReplyGenerator&&) noexcept = default;

ReplyGenerator::ReplyGenerator(const Model& model, Session& session, ReplyOptions options)
    : impl_(
          detail::made_or_empty([&] { return std::unique_ptr<Impl>(new Impl(model, session, std::move(options))); })) {
    if (impl_ && !impl_->stops) impl_.reset();
}

Result<std::vector<ReplyEvent>> ReplyGenerator::next() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyGenerator", "its constructor with a Model and a Session");
    AUSPEX_TRY(impl_->usable());
    AUSPEX_TRY(impl_->step());
    return std::exchange(impl_->events, {});
}
AUSPEX_CATCH

Result<std::vector<ReplyEvent>> ReplyGenerator::push(Token id) AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyGenerator", "its constructor with a Model and a Session");
    AUSPEX_TRY(impl_->usable());
    const uint32_t n_vocab = impl_->model.info().n_vocab;
    if (id < 0 || static_cast<uint32_t>(id) >= n_vocab)
        return detail::fail(Code::bad_argument, "token ", id, " is outside the vocabulary of ", n_vocab);
    AUSPEX_TRY(impl_->go_on(id));
    return std::exchange(impl_->events, {});
}
AUSPEX_CATCH

Result<Span<const float>> ReplyGenerator::logits() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyGenerator", "its constructor with a Model and a Session");
    AUSPEX_TRY(impl_->take_back());
    return impl_->session.logits();
}
AUSPEX_CATCH

Result<std::vector<ReplyEvent>> ReplyGenerator::finish() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyGenerator", "its constructor with a Model and a Session");
    if (impl_->finished) return Status(Code::bad_argument, "the reply is finished; finish() was called before");
    AUSPEX_TRY(impl_->end());
    return std::exchange(impl_->events, {});
}
AUSPEX_CATCH

Result<std::vector<ReplyEvent>> ReplyGenerator::pause() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyGenerator", "its constructor with a Model and a Session");
    AUSPEX_TRY(impl_->usable());
    AUSPEX_TRY(impl_->pause());
    return std::exchange(impl_->events, {});
}
AUSPEX_CATCH

Result<SyncReport> ReplyGenerator::resume() AUSPEX_BOUNDARY {
    if (!impl_) return detail::empty_handle("ReplyGenerator", "its constructor with a Model and a Session");
    return impl_->session.sync(impl_->history);
}
AUSPEX_CATCH

Finish ReplyGenerator::ended() const { return impl_ ? impl_->finish : Finish::none; }
const std::string* ReplyGenerator::stop() const { return impl_ ? impl_->stops.found() : nullptr; }
bool ReplyGenerator::in_thinking() const { return impl_ && impl_->thinking; }
size_t ReplyGenerator::n_thinking_token() const { return impl_ ? impl_->n_thinking : 0; }

Span<const Token> ReplyGenerator::tokens() const {
    if (!impl_) return {};
    return Span<const Token>(impl_->history.data() + impl_->n_prompt, impl_->n_token());
}

const ChatReply& ReplyGenerator::reply() const {
    static const ChatReply empty;
    return impl_ ? impl_->reply : empty;
}

}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex

AUSPEX_SMALL_CODE_END
