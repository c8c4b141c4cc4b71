// Every allocation and every thread start fails in turn: each public call returns a Status, leaks nothing, and works
// when it is called again.
//
// Allocations fail through tests/allocations.h or the application's Allocator, thread starts through
// tests/thread_failure.h. tests/test_vulkan_fault.cpp does the same for a GPU.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "../src/base/guard.h"
#include "../src/engine/constraint.h"
#include "../src/grammar/interface.h"
#include "../src/grammar/matcher.h"
#include "allocations.h"
#include "session_file_rig.h"
#include "thread_failure.h"

using namespace auspex;
using namespace test;

namespace {

/// Calls `call` with the first allocation failing, then the second and so on, until none fails. Each failure must come
/// back as out_of_memory; after it nothing may be held that was not held before. Steps grow so that a call of thousands
/// of allocations is covered by some hundred failures. Returns the number of failures.
template <class Call>
int fail_each(std::atomic<int64_t>& until, const char* what, Call call) {
    int n = 0;
    for (int64_t i = 0;; i += 1 + i / 24, ++n) {
        const int64_t held = n_held.load();
        bool met = false;
        {
            until = i;
            const Status s = call();
            met = until.exchange(kNever) < 0;
            if (met && s.code != Code::out_of_memory)
                FAIL_CHECK(what << ", failure " << i << ": " << (s.ok() ? "ok" : s.message()));
            if (!met && !s.ok()) FAIL_CHECK(what << " without a failure: " << s.message());
        }
        if (n_held.load() != held) FAIL_CHECK(what << ", failure " << i << ": leaks " << n_held.load() - held);
        if (!met) return n;
    }
}

/// The same for calls that keep what they have allocated: only their answers are looked at. Steps grow by i / slowness.
template <class Call>
int fail_in_turn(const char* what, Call call, int64_t slowness = INT64_MAX) {
    int n = 0;
    for (int64_t i = 0;; i += 1 + i / slowness, ++n) {
        allocations_until_fault = i;
        const Status s = call();
        const bool met = allocations_until_fault.exchange(kNever) < 0;
        if (s.ok()) return n;
        CHECK_MESSAGE(s.code == Code::out_of_memory, what << ", failure " << i << ": " << s.message());
        REQUIRE(met);
    }
}

/// A call within the library as one at its boundary.
template <class Call>
Status guarded(Call call) AUSPEX_BOUNDARY {
    call();
    return {};
}
AUSPEX_CATCH

}  // namespace

TEST_CASE("where an allocation fails, opening a device and loading a model return a Status and leak nothing") {
    const std::vector<std::byte> bytes = tiny_model();
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 2;
    const auto open = [&] { return Device::open(options).status(); };
    REQUIRE(open().ok());
    CHECK(fail_each(allocations_until_fault, "Device::open", open) > 3);
    const Device device = open_device(options);
    const auto load = [&] { return Model::load(device, bytes).status(); };
    REQUIRE(load().ok());  // tables that live as long as the program are made now
    CHECK(fail_each(allocations_until_fault, "Model::load", load) > 50);
    const auto plan = [&] {
        return Session::plan(device, "no-such-file.gguf").status().code == Code::not_found
                   ? Status()
                   : Status(Code::out_of_memory, "");
    };
    CHECK(fail_each(allocations_until_fault, "Session::plan of a missing file", plan) > 0);
}

TEST_CASE("where any of the last allocations of a load fails, no model with another chat template is returned") {
    const std::vector<std::byte> bytes = tiny_model();
    const Device device = cpu_device();
    const auto load = [&] { return Model::load(device, bytes).status(); };
    REQUIRE(load().ok());
    const AllocationCount count;
    REQUIRE(load().ok());
    for (int64_t n = count.calls(), i = n - 40; i < n; ++i) {
        allocations_until_fault = i;
        const Status s = load();
        REQUIRE(allocations_until_fault.exchange(kNever) < 0);
        CHECK_MESSAGE(s.code == Code::out_of_memory, "failure " << i << " of " << n << ": " << s.message());
    }
}

TEST_CASE("where an allocation fails, a chat template that is not recognised has a note") {
    const char kTemplate[] = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content }}{% endfor %}";
    const auto recognise = [&] {
        std::string note;
        const bool found = recognise_template(kTemplate, &note).style == ChatStyle::jinja;
        return found && note.empty()                ? Status()
               : !found && note == "no host memory" ? Status(Code::out_of_memory, "")
                                                    : Status(Code::bad_argument, note);
    };
    REQUIRE(recognise().ok());
    CHECK(fail_each(allocations_until_fault, "recognise_template", recognise) > 50);
}

TEST_CASE("where an allocation fails, reading files and planning return a Status and leak nothing") {
    const test_session_file::Folder folder;
    const std::string file = folder.file("tiny.gguf"), packed = folder.file("tiny.packed"),
                      chat = folder.file("chat.session");
    const std::vector<std::byte> bytes = tiny_model(narrow());
    test_session_file::write_file(file, bytes);
    const Device device = cpu_device();
    const char* path = file.c_str();
    LoadOptions copied, mapped;
    copied.copy_file = true;
    mapped.packed_file = packed;
    FileReader reader;
    reader.bytes = bytes.size();
    reader.read = [&](uint64_t at, void* to, size_t n) {
        std::memcpy(to, bytes.data() + at, n);
        return n;
    };
    const auto all = [&](const char* what, auto call) {
        REQUIRE(call().ok());
        CHECK(fail_each(allocations_until_fault, what, call) > 5);
    };
    all("Model::load of a path", [&] { return Model::load(device, path).status(); });
    all("Model::load of a copy", [&] { return Model::load(device, path, copied).status(); });
    all("Model::load with a packed file", [&] { return Model::load(device, path, mapped).status(); });
    all("Model::load of a reader", [&] { return Model::load(device, reader).status(); });
    all("read_file_info", [&] { return read_file_info(path).status(); });
    all("Vocabulary::load", [&] { return Vocabulary::load(path).status(); });
    const Model model = load_model(device, bytes);
    all("Session::plan of a model", [&] { return Session::plan(model).status(); });
    all("Session::plan of a file", [&] { return Session::plan(device, path).status(); });
    Session session = open(model);
    REQUIRE(session.sync(tiny_ids(20, 4)).ok());
    test_session_file::save(session, chat, std::vector<std::byte>(50));
    all("read_session_file", [&] { return read_session_file(chat.c_str()).status(); });
    const auto list = [] {
        DeviceOptions options;
        options.kind = Kind::cpu;
        std::vector<DeviceEntry> entries;
        const Status s = Device::list(options).get(entries);
        return s.ok() && entries[0].name.empty() ? Status(Code::bad_file, "an entry without a name") : s;
    };
    REQUIRE(list().ok());
    CHECK(fail_each(allocations_until_fault, "Device::list", list) > 3);
}

TEST_CASE("where an allocation fails, encode, decode, render and streams return a Status and leak nothing") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    const std::string text = "the cat, the hat and the text of a longer line than fits anywhere without memory";
    std::vector<Token> ids;
    CHECK(fail_each(allocations_until_fault, "encode", [&] { return model.encode(text).status(); }) > 3);
    REQUIRE(model.encode(text).get(ids).ok());
    CHECK(fail_each(allocations_until_fault, "decode", [&] { return model.decode(ids).status(); }) > 0);
    const char* json = R"({"messages": [{"role": "user", "content": "a question of more than a few characters"}]})";
    CHECK(fail_each(allocations_until_fault, "from_json", [&] { return ChatRequest::from_json(json).status(); }) > 5);
    ChatRequest request;
    REQUIRE(ChatRequest::from_json(json).get(request).ok());
    for (ChatStyle style : {ChatStyle::chatml, ChatStyle::qwen35, ChatStyle::qwen36_unsloth})
        CHECK(fail_each(allocations_until_fault, "render", [&] { return render_chat(request, style).status(); }) > 3);
    const char* reply = "<think>\nhm hm hm hm hm hm hm\n</think>\n\nan answer that is longer than a small string";
    CHECK(fail_each(allocations_until_fault, "parse_reply", [&] { return parse_reply(reply, true).status(); }) > 0);
    const std::vector<std::string> tools = {R"({"name": "a_function_of_some_length"})"};
    const auto stream = [&] {
        ReplyStream s(true, tools);
        Status done = s.push("thoughts that are longer than a small string</think><tool_call><function=a_fun").status();
        if (done.ok()) done = s.push("ction><parameter=x>a value of more than a few characters</parameter>").status();
        if (done.ok()) done = s.finish().status();
        if (done.ok()) done = to_json(s.reply()).status();
        return done.code == Code::bad_argument ? Status(Code::out_of_memory, "") : done;
    };
    CHECK(fail_each(allocations_until_fault, "ReplyStream", stream) > 10);
    CHECK(fail_each(allocations_until_fault, "parse_windows", [&] { return parse_windows("all:64,3:full").status(); }) >
          0);
}

TEST_CASE("each allocation of compiling a grammar may fail") {
    const std::string schema = R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "^a+$"},
        "b": {"type": "array", "items": {"type": "integer", "minimum": 3}}}, "required": ["a"]})";
    CHECK(fail_each(allocations_until_fault, "schema", [&] { return Grammar::from_json_schema(schema).status(); }) > 5);
    CHECK(fail_each(allocations_until_fault, "gbnf",
                    [] { return Grammar::from_gbnf("root ::= (\"a\" b)*\nb ::= [0-9]{2,5} root").status(); }) > 5);
    const std::vector<std::string> tools{"{\"name\": \"a_function\", \"parameters\": " + schema + "}"};
    CHECK(fail_each(allocations_until_fault, "tools", [&] { return Grammar::from_tools(tools).status(); }) > 5);
    CHECK(fail_each(allocations_until_fault, "regex", [] { return Grammar::from_regex("(a|b)*c{2}").status(); }) > 5);
}

TEST_CASE("where an allocation fails, a session returns a Status, leaks nothing and goes on to the same text") {
    const std::vector<std::byte> bytes = tiny_model();
    const Model model = load_model(cpu_device(), bytes);
    SessionOptions options;
    options.n_context = 128;
    options.draft.source = Draft::mtp;
    options.draft.depth = 2;
    const std::vector<Token> prompt = tiny_ids(20, 4);
    const auto create = [&] { return Session::create(model, options).status(); };
    REQUIRE(create().ok());
    CHECK(fail_each(allocations_until_fault, "create", create) > 10);
    Session plain, session;
    REQUIRE(Session::create(model, options).get(plain).ok());
    REQUIRE(plain.sync(prompt).ok());
    while (plain.history().size() < 40) REQUIRE(plain.next().ok());
    REQUIRE(Session::create(model, options).get(session).ok());
    fail_in_turn("sync", [&] { return session.sync(prompt).status(); });
    while (session.history().size() < 30) fail_in_turn("next", [&] { return session.next().status(); });
    Snapshot snapshot;
    fail_in_turn("save", [&] { return session.save().get(snapshot); });
    fail_in_turn("restore", [&] { return session.restore(snapshot); });
    fail_in_turn("logits", [&] { return session.logits().status(); });
    const std::vector<std::byte> costs = session.save_costs();
    fail_in_turn("load_costs", [&] { return session.load_costs(costs); });
    while (session.history().size() < 40) fail_in_turn("next", [&] { return session.next().status(); });
    CHECK(std::equal(plain.history().begin(), plain.history().begin() + 40, session.history().begin()));
    Grammar grammar;
    REQUIRE(Grammar::from_regex("[a-z ]*").get(grammar).ok());
    Sampling sampling;
    fail_in_turn("Constraint::create", [&] { return Constraint::create(model, grammar).get(sampling.constraint); });
    fail_in_turn("next under a constraint", [&] { return session.next(sampling).status(); });
    fail_in_turn("ReplyGenerator", [&] {
        Status s = session.sync(prompt).status();
        if (!s.ok()) return s;
        ReplyOptions reply_options;
        reply_options.max_tokens = 6;
        ReplyGenerator reply(model, session, reply_options);
        if (!reply) return Status(Code::out_of_memory, "");
        while (s.ok() && reply.ended() == Finish::none) s = reply.next().status();
        return s.ok() ? reply.finish().status() : s;
    });
    fail_in_turn("score", [&] { return session.score(prompt, [](size_t, Span<const float>) {}); });
    fail_in_turn("score_mtp", [&] { return session.score_mtp(prompt, 1, [](size_t, Span<const float>) {}); });
}

TEST_CASE("where an allocation fails, a matcher goes on with the masks that it has without it") {
    using detail::Matcher;
    const Model model = load_model(cpu_device(), repo_dir() + "/examples/models/auspex-demo.gguf");
    const std::string object = R"({"type": "object", "additionalProperties": {"type": "string"}, "required": ["a", "b"],
        "properties": {"a": {"type": "string", "pattern": "^[a-f]{2,9}$"}, "b": {"type": "array", "items": {
        "type": "integer", "multipleOf": 3}}, "c": {"enum": ["one", "once", "other"]}}})";
    const std::string braces = "root ::= \"(\" root \")\" | \"(\" root \"]\" | word+\nword ::= [a-z]+ \" \"";
    const struct {
        Result<Grammar> grammar;
        const char* text;
    } cases[] = {
        {Grammar::from_json_schema(object), R"({"b": [3, 12, 27], "x": "a \"text\"", "c": "once", "a": "abcdef"})"},
        {Grammar::from_gbnf(braces), "((((two words )))]"},
        {Grammar::from_regex("( [a-z]+=([0-9.]{1,8}C?|[^ ]{1,40}))*"), " status=nominal temp=62C vibration=0.2"},
        {Grammar::from_tools({R"({"name": "find", "parameters": )" + object + "}"}), "<tool_call>\n<function=find>\n"},
    };
    int n_failure = 0;
    for (const auto& one : cases) {
        CAPTURE(one.text);
        REQUIRE_MESSAGE(one.grammar.ok(), one.grammar.status().message());
        Constraint constraint;
        REQUIRE(Constraint::create(model, one.grammar.value()).get(constraint).ok());
        std::vector<Token> tokens;
        REQUIRE(model.encode(one.text).get(tokens).ok());
        for (const size_t limit : {size_t{48} << 20, size_t{1}}) {  // of memory; the second forgets at each step
            std::unique_ptr<Matcher> plain, faulty;
            for (std::unique_ptr<Matcher>* m : {&plain, &faulty}) {
                REQUIRE(Matcher::create(one.grammar.value().impl()->rules, constraint.impl()->vocab).get(*m).ok());
                (*m)->set_memory_limit(limit);
            }
            std::vector<uint32_t> bits(plain->n_word()), expected(bits);
            for (const Token id : tokens) {
                plain->mask(expected);
                n_failure += fail_in_turn(
                    "mask", [&] { return guarded([&] { faulty->mask(bits); }); }, 16);
                REQUIRE(bits == expected);
                std::string forced;
                n_failure += fail_in_turn(
                    "forced", [&] { return guarded([&] { forced = faulty->forced(); }); }, 16);
                CHECK(forced == plain->forced());
                bool accepted = false;
                n_failure += fail_in_turn(
                    "accept", [&] { return guarded([&] { accepted = faulty->accept(id); }); }, 16);
                REQUIRE(accepted == plain->accept(id));
                REQUIRE(faulty->n_step() == plain->n_step());
            }
            faulty->rollback(tokens.size());
            plain->rollback(tokens.size());
            plain->mask(expected);
            faulty->mask(bits);
            CHECK(bits == expected);
        }
    }
    CHECK(n_failure > 1000);
}

TEST_CASE("where an allocation fails in a cycle under a constraint, the text goes on as without it") {
    const Model model = load_model(cpu_device(), repo_dir() + "/examples/models/auspex-demo.gguf");
    std::vector<Token> prompt;
    REQUIRE(model.encode("2026-03-14 08:00 Pump-3").get(prompt).ok());
    SessionOptions options;
    options.n_context = 128;
    options.draft.source = Draft::mtp;
    options.draft.depth = 3;
    Grammar grammar;  // of the text that the model writes: a token that counts twice does not fit
    const char kText[] = " status=nominal temp=[0-9]{2}C vibration=[0-9.]{1,20} note: [a-z ,]{0,4000}";
    REQUIRE(Grammar::from_regex(kText).get(grammar).ok());
    Session plain, session;
    Sampling of_plain, sampling;  // a constraint each, or one would know what the other has met
    for (Sampling* how : {&of_plain, &sampling}) REQUIRE(Constraint::create(model, grammar).get(how->constraint).ok());
    for (Session* s : {&plain, &session}) {
        REQUIRE(Session::create(model, options).get(*s).ok());
        REQUIRE(s->sync(prompt).ok());
    }
    const size_t n_wanted = prompt.size() + 20;
    while (plain.history().size() < n_wanted) REQUIRE(plain.next(of_plain).ok());
    int n_failure = 0;
    while (session.history().size() < n_wanted)
        n_failure += fail_in_turn(
            "next", [&] { return session.next(sampling).status(); }, 24);
    CHECK(n_failure > 20);
    for (const Session* s : {&plain, &session}) CHECK(s->stats().accepted[0] > 1);
    const size_t n = std::min(plain.history().size(), session.history().size());
    CHECK(std::equal(session.history().begin(), session.history().begin() + n, plain.history().begin()));
}

TEST_CASE("where the application's Allocator has no more, load and create return a Status and give everything back") {
    struct Heap {
        std::atomic<int64_t> until{kNever}, n_call{0}, held{0};
    } heap;
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 2;
    options.allocator.user = &heap;
    options.allocator.alloc = [](void* user, size_t n, size_t alignment) -> void* {
        Heap& h = *static_cast<Heap*>(user);
        ++h.n_call;
        if (fails(h.until)) return nullptr;
        h.held += static_cast<int64_t>(n);
        return ::operator new(n, std::align_val_t(alignment), std::nothrow);
    };
    options.allocator.free = [](void* user, void* p, size_t n, size_t alignment) {
        static_cast<Heap*>(user)->held -= static_cast<int64_t>(n);
        ::operator delete(p, std::align_val_t(alignment));
    };
    const std::string path = repo_dir() + "/examples/models/auspex-demo.gguf";
    const Device device = open_device(options);
    for (const bool copy_file : {false, true}) {
        CAPTURE(copy_file);
        LoadOptions load;
        load.copy_file = copy_file;
        const int64_t held = heap.held;
        CHECK(fail_each(heap.until, "Model::load", [&] { return Model::load(device, path.c_str(), load).status(); }) >
              (copy_file ? 1 : 0));
        CHECK(heap.held == held);
    }
    const Model model = load_model(device, path);
    SessionOptions session_options;
    session_options.draft.source = Draft::mtp;
    session_options.draft.n_vocab = 64;
    const int64_t held = heap.held;
    CHECK(fail_each(heap.until, "Session::create", [&] { return Session::create(model, session_options).status(); }) >
          1);
    CHECK(heap.held == held);
    Session session;
    REQUIRE(Session::create(model, session_options).get(session).ok());
    const int64_t n_call = heap.n_call;
    Snapshot snapshot;
    REQUIRE(session.sync(std::vector<Token>{1, 2, 3, 4}).ok());
    REQUIRE(session.next().ok());
    REQUIRE(session.save().get(snapshot).ok());
    REQUIRE(session.restore(snapshot).ok());
    CHECK(heap.n_call == n_call);  // create() took all of it
}

TEST_CASE("where a thread cannot be started, opening a device returns a Status and leaks nothing") {
    if (!can_refuse_threads()) return skip("thread starts cannot be intercepted here");
    DeviceOptions options;
    options.kind = Kind::cpu;
    options.n_thread = 4;
    const auto open = [&] { return Device::open(options).status(); };
    REQUIRE(open().ok());
    CHECK(fail_each(threads_until_fault, "Device::open with 4 threads", open) == 3);
}
