// Tests of a model whose draft blocks are in a file of their own.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

#include "../src/engine/model.h"
#include "../src/engine/snapshot.h"
#include "../src/plan/arch.h"
#include "../src/plan/pair.h"
#include "gguf_writer.h"
#include "session_rig.h"
#include "tiny.h"

using namespace auspex;
using namespace auspex::detail;
using namespace test;

namespace {

using Bytes = std::vector<std::byte>;

Bytes tiny(Family family, Packaging packaging, bool mtp = true, Type type = Type::q8_0, bool slim = false) {
    TinyOptions o;
    o.family = family;
    o.packaging = packaging;
    o.mtp = mtp;
    o.n_layer = o.interval = 2;
    o.type = type;
    o.scale = 4;  // decided enough that some drafts are right
    return tiny_model(slim ? narrow(o) : o);
}

Status load(const Device& device, const Bytes& model, const Bytes& draft, Model* to) {
    LoadOptions options;
    options.mtp_bytes = draft;
    return Model::load(device, model, options).get(*to);
}

/// Outputs of a model: logit rows of the trunk and of each draft depth, then a drafted text and its acceptance.
struct Said {
    std::vector<float> rows;
    std::vector<Token> text;
    std::vector<uint64_t> accepted;
    uint64_t memory = 0, weights = 0;
    bool operator==(const Said& o) const {
        return rows == o.rows && text == o.text && accepted == o.accepted && memory == o.memory && weights == o.weights;
    }
};

Said listen(const Model& model) {
    SessionOptions options;
    options.n_context = 128;
    options.n_ubatch = 16;
    options.draft.source = Draft::mtp;
    options.draft.depth = 3;
    Session session = open(model, options);
    Said said;
    const std::vector<Token> ids = tiny_ids(24, 5);
    auto keep = [&](size_t, Span<const float> row) { said.rows.insert(said.rows.end(), row.begin(), row.end()); };
    REQUIRE(session.score(ids, keep).ok());
    for (uint32_t depth = 1; depth <= 3; ++depth) REQUIRE(session.score_mtp(ids, depth, keep).ok());
    sync(session, ids);
    said.text = more(session, 40);
    const Stats stats = session.stats();
    said.accepted.assign(stats.accepted, stats.accepted + kMaxDraft);
    said.memory = stats.memory_bytes;
    said.weights = model.info().weight_bytes;
    return said;
}

/// The outputs of the pair equal those of the single file. `all`: for every packaging of the two files. `slim`: with a
/// narrow F16 model, for which other tests have compiled the kernels.
void check_pairs(const Device& device, Family family, bool all, bool slim = false) {
    CAPTURE(family_name(family));
    const auto file = [&](Packaging packaging, bool mtp) {
        return tiny(family, packaging, mtp, slim ? Type::f16 : Type::q8_0, slim);
    };
    const Bytes whole = file(Packaging::whole, true);
    Model one;
    REQUIRE(load(device, whole, {}, &one).ok());
    const Said want = listen(one);
    // A trunk whose keys still count the blocks, one whose keys do not, and a whole file whose block is replaced by its
    // like.
    const Bytes trunks[] = {file(Packaging::trunk, true), file(Packaging::whole, false), whole};
    const Bytes drafts[] = {file(Packaging::mtp, true), file(Packaging::mtp_bare, true), whole};
    for (size_t i = 0; i < 3; ++i)
        for (size_t k = 0; k < 3; ++k) {
            if (i + k > 2 || (!all && (i != 0 || k != 1))) continue;
            CAPTURE(i);
            CAPTURE(k);
            Model pair;
            Status s = load(device, trunks[i], drafts[k], &pair);
            REQUIRE_MESSAGE(s.ok(), s.message());
            CHECK(pair.info().n_mtp == one.info().n_mtp);
            CHECK(pair.info().n_layer == one.info().n_layer);
            CHECK(pair.info().file_bytes == trunks[i].size() + drafts[k].size());
            CHECK(listen(pair) == want);
        }
}

/// A file with keys and nothing but the names of tensors that pair_files looks at.
struct Header {
    const char* arch = "qwen35";
    uint32_t n_block = 4, n_mtp = 0, d_model = 64, n_vocab = 8, n_token = 8;
    uint32_t n_output = 0;  ///< rows of a head of its own
    Type type = Type::f32;
    bool blocks = true, trunk = true;
    std::vector<uint32_t> heads;
    std::vector<int32_t> types;  ///< of the tokens
    const char* last = "x";      ///< text of the last token; that of the others is "x"
    Bytes bytes;
    Gguf file() {
        GgufWriter w;
        const std::string p = std::string(arch) + ".";
        w.add("general.architecture", arch);
        w.add(p + "block_count", n_block);
        if (n_mtp) w.add(p + "nextn_predict_layers", n_mtp);
        w.add(p + "embedding_length", d_model);
        w.add(p + "context_length", n_block * 100);
        if (!heads.empty()) w.add(p + "attention.head_count", heads);
        std::vector<std::string> tokens(n_token, "x");
        tokens.back() = last;
        w.add("tokenizer.ggml.tokens", tokens);
        if (!types.empty()) w.add("tokenizer.ggml.token_type", types);
        auto add = [&](const std::string& name, uint64_t rows) {
            w.tensor(name, type, {d_model, rows}, Span<const float>(std::vector<float>(rows * d_model)));
        };
        if (n_vocab) add("token_embd.weight", n_vocab);
        if (n_output) add("output.weight", n_output);
        if (trunk) add("blk.0.attn_norm.weight", 1);
        if (n_mtp && blocks) add("blk." + std::to_string(n_block - n_mtp) + ".nextn.eh_proj.weight", 2);
        bytes = w.finish();
        Gguf g;
        Status s = Gguf::parse(bytes).get(g);
        REQUIRE_MESSAGE(s.ok(), s.message());
        return g;
    }
};

Header draft_header() {
    Header h;
    h.n_block = 5;
    h.n_mtp = 1;
    h.trunk = false;
    return h;
}

void refused(Header model, Header draft, std::vector<const char*> words) {
    const Gguf a = model.file(), b = draft.file();
    const Status s = pair_files(a, b).status();
    CHECK(s.code == Code::bad_file);
    for (const char* word : words) CHECK_MESSAGE(s.text.find(word) != std::string::npos, word << " in: " << s.text);
}

/// A file that is removed after the test.
struct Written {
    std::string path;
    Written(const std::string& name, const Bytes& bytes) : path(name) {
        std::FILE* f = std::fopen(path.c_str(), "wb");
        REQUIRE(f);
        REQUIRE(std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size());
        REQUIRE(std::fclose(f) == 0);
    }
    ~Written() { std::remove(path.c_str()); }
    Written(const Written&) = delete;
    Written& operator=(const Written&) = delete;
};

}  // namespace

TEST_CASE("a model and its draft blocks in two files equal the model in one: logits, drafts and memory") {
    const Device device = cpu_device();
    for (Family family : kFamilies) check_pairs(device, family, true);
}

#ifndef AUSPEX_NO_VULKAN
TEST_CASE("on the GPU, a model and its draft blocks in two files equal the model in one") {
    const Device device = gpu_device();
    if (!device) return;
    for (Family family : kFamilies)  // step35 has three draft blocks
        if (deep() || family == Family::step35) check_pairs(device, family, false, !deep());
}
#endif

TEST_CASE("both files of a pair may be sharded, and the plan is known from their headers") {
    TinyOptions o;
    o.family = Family::step35;
    o.packaging = Packaging::mtp;
    o.n_layer = o.interval = 2;
    const std::vector<Bytes> parts = tiny_shards(o, 2);
    const Written trunk("test_pair-trunk.gguf", tiny(o.family, Packaging::trunk, true, o.type));
    const Written first("test_pair-mtp-00001-of-00002.gguf", parts[0]),
        second("test_pair-mtp-00002-of-00002.gguf", parts[1]);
    const Device device = cpu_device();
    LoadOptions load;
    load.mtp_file = first.path;
    Model model;
    Status s = Model::load(device, trunk.path.c_str(), load).get(model);
    REQUIRE_MESSAGE(s.ok(), s.message());
    CHECK(model.info().n_mtp == 3);
    SessionOptions options;
    options.draft.source = Draft::mtp;
    MemoryPlan before, after;
    REQUIRE(Session::plan(device, trunk.path.c_str(), options, load).get(before).ok());
    REQUIRE(Session::plan(model, options).get(after).ok());
    CHECK(before.total_bytes == after.total_bytes);
    CHECK(before.file_bytes == after.file_bytes);
    CHECK(before.weight_bytes + before.file_bytes >= model.info().weight_bytes);

    {
        const Written wrong("test_pair-wrong-00001-of-00002.gguf", parts[0]),
            again("test_pair-wrong-00002-of-00002.gguf", parts[0]);
        s = Model::load(device, wrong.path.c_str()).status();
        CHECK(s.code == Code::bad_file);
        CHECK(s.text.find("shard 2 ('" + again.path + "') says it is shard 1") != std::string::npos);
    }

    load.mtp = false;  // then it is not even opened
    load.mtp_file = "nowhere.gguf";
    REQUIRE(Model::load(device, trunk.path.c_str(), load).get(model).ok());
    CHECK(model.info().n_mtp == 0);
    load.mtp = true;
    s = Model::load(device, trunk.path.c_str(), load).status();
    CHECK(s.code == Code::not_found);
    CHECK(s.text.find("nowhere.gguf") != std::string::npos);
    load.mtp_bytes = parts[0];
    CHECK(Model::load(device, trunk.path.c_str(), load).status().code == Code::bad_argument);
    load.mtp_file.clear();
    s = Model::load(device, trunk.path.c_str(), load).status();  // half a file
    CHECK(s.code == Code::bad_file);
    CHECK(s.text.find("shard") != std::string::npos);
}

TEST_CASE("errors of the draft file name it") {
    const Written trunk("test_pair-own.gguf", tiny(Family::qwen35, Packaging::trunk));
    const Device device = cpu_device();
    const auto check = [&](const char* tensor, const char* what, auto change) {
        Bytes bytes = tiny(Family::qwen35, Packaging::mtp);
        Gguf file;
        REQUIRE(Gguf::parse(bytes).get(file).ok());
        REQUIRE(file.tensor(tensor));
        change(bytes, *file.tensor(tensor));
        const Written draft("test_pair-draft.gguf", bytes);
        LoadOptions options;
        options.mtp_file = draft.path;
        const Status s = Model::load(device, trunk.path.c_str(), options).status();
        CHECK(s.code == Code::bad_file);
        CHECK_MESSAGE(s.text.find("with the draft file 'test_pair-draft.gguf': tensor '" + std::string(tensor) +
                                  what) != std::string::npos,
                      s.text);
    };
    check("blk.2.nextn.eh_proj.weight", "' is [512, 256], expected [256, 512]", [](Bytes& bytes, const Tensor& t) {
        std::byte* shape = bytes.data() + (reinterpret_cast<const std::byte*>(t.name.data()) - bytes.data()) +
                           t.name.size() + 4;  // behind the number of dimensions
        std::swap_ranges(shape, shape + 8, shape + 8);
    });
    check("blk.2.nextn.hnorm.weight", "' holds inf at 0", [](Bytes& bytes, const Tensor& t) {
        const float wrong = std::numeric_limits<float>::infinity();
        std::memcpy(bytes.data() + t.file_offset, &wrong, sizeof wrong);
    });
}

TEST_CASE("a smaller head in the draft file is used for drafts, a larger one is ignored") {
    const Device device = cpu_device();
    const Bytes trunk = tiny(Family::qwen35, Packaging::trunk),
                whole = tiny(Family::qwen35, Packaging::whole);  // models read from them
    for (Type type : {Type::q4_k, Type::f16}) {
        const Bytes draft = tiny(Family::qwen35, Packaging::mtp, true, type);
        Model pair;
        REQUIRE(load(device, trunk, draft, &pair).ok());
        const Plan& plan = pair.impl()->plan;
        const Op& head = plan.mtp[0].ops.back();
        CHECK((plan.slot(head.w[0]).name == kDraftHead) == (type == Type::q4_k));
        CHECK(plan.slot(head.w[0]).type == (type == Type::q4_k ? Type::q4_k : Type::q8_0));
        Model one;
        REQUIRE(load(device, whole, {}, &one).ok());
        CHECK(listen(pair).text == listen(one).text);
    }
}

TEST_CASE("the scale of a smaller head comes with it from the draft file") {
    TinyOptions o;
    o.type = Type::nvfp4;
    o.n_layer = o.interval = 2;
    o.tied = false;
    o.scales = TinyOptions::Scales::separate;
    o.packaging = Packaging::mtp;
    const Bytes draft = tiny_model(o), trunk = tiny(Family::qwen35, Packaging::trunk);
    Gguf model, other, pair;
    REQUIRE(Gguf::parse(trunk).get(model).ok());
    REQUIRE(Gguf::parse(draft).get(other).ok());
    const Status joined = pair_files(model, other).get(pair);
    REQUIRE_MESSAGE(joined.ok(), joined.message());
    REQUIRE(pair.tensor(kDraftHeadScale));
    CHECK(pair.tensor(kDraftHeadScale)->data == other.tensor("output.scale")->data);
    CHECK(pair.tensor("output.scale") == nullptr);
    Plan plan;
    const Status s = make_plan(pair, {}).get(plan);
    REQUIRE_MESSAGE(s.ok(), s.message());
    const Slot& head = plan.slot(plan.mtp[0].ops.back().w[0]);
    CHECK(head.name == kDraftHead);
    CHECK(head.scale.size() == 1);
    PlanOptions without;
    without.mtp = false;
    CHECK(make_plan(pair, without).ok());

    // Both belong to the draft's identity: a snapshot of the pair goes into a session of the model alone.
    Model one, two;
    const Device device = cpu_device();
    REQUIRE(load(device, trunk, {}, &one).ok());
    REQUIRE(load(device, trunk, draft, &two).ok());
    CHECK(weights_id(*one.impl()).value == weights_id(*two.impl()).value);
}

TEST_CASE("a copy of the embedding is a smaller head only where the model's embedding is its head") {
    Header tied, untied;
    untied.n_output = 8;
    Header embedding = draft_header(), head = draft_header();
    embedding.type = head.type = Type::f16;
    head.n_output = 8;
    const Gguf models[] = {tied.file(), untied.file()}, drafts[] = {embedding.file(), head.file()};
    const bool used[2][2] = {{true, true}, {false, true}};
    for (size_t m = 0; m < 2; ++m)
        for (size_t d = 0; d < 2; ++d) {
            CAPTURE(m);
            CAPTURE(d);
            Gguf pair;
            REQUIRE(pair_files(models[m], drafts[d]).get(pair).ok());
            CHECK((pair.tensor(kDraftHead) != nullptr) == used[m][d]);
        }
}

TEST_CASE("files that do not belong together are rejected with the difference") {
    REQUIRE(pair_files(Header().file(), draft_header().file()).status().code == Code::ok);
    Header d = draft_header();
    d.arch = "step35";
    refused({}, d, {"architecture 'step35'", "expected 'qwen35'"});
    d = draft_header();
    d.d_model = 96;
    refused({}, d, {"token_embd.weight", "[8, 96]", "expected [8, 64]"});
    d.n_vocab = 0;
    refused({}, d, {"qwen35.embedding_length", "is 96", "expected 64"});
    d = draft_header();
    d.n_vocab = 9;
    refused({}, d, {"token_embd.weight", "[9, 64]", "expected [8, 64]"});
    d = draft_header();
    d.n_output = 100;  // the model's embedding is its head
    refused({}, d, {"'output.weight' is [100, 64]", "expected [8, 64]"});
    d = draft_header();
    d.n_token = 7;
    refused({}, d, {"7 tokens", "expected 8"});
    d = draft_header();
    d.last = "y";
    refused({}, d, {"token 7 of the draft file is 'y'", "expected 'x'"});
    Header padded;  // whose padding token has a name of its own
    padded.types = {1, 1, 1, 1, 1, 1, 1, 3};
    {
        const Gguf model = padded.file(), draft = d.file();
        CHECK(pair_files(model, draft).ok());
    }
    d = draft_header();
    d.n_block = 7;
    refused({}, d, {"follow 6 layers", "expected 4"});
    d = draft_header();
    d.n_mtp = 0;
    d.trunk = true;
    refused({}, d, {"no MTP block", "nextn_predict_layers", "mtp-*.gguf"});
    d = draft_header();
    d.blocks = false;
    refused({}, d, {"no MTP block", "blk.4.nextn.eh_proj.weight"});

    // Values by block: as many as each file has blocks, the same where both have one.
    Header m;
    m.heads = {4, 8, 8, 8};
    d = draft_header();
    d.heads = {4, 8, 8, 8, 16};
    Gguf pair;
    const Gguf a = m.file(), b = d.file();
    REQUIRE(pair_files(a, b).get(pair).ok());
    CHECK(pair.find("qwen35.attention.head_count")->n == 5);
    CHECK(pair.get_u32("qwen35.block_count").value() == 5);
    CHECK(pair.get_u32("qwen35.context_length").value() == 400);  // the model's
    d.heads[2] = 9;
    refused(m, d, {"qwen35.attention.head_count", "is 9 for block 2", "expected 8"});
    d.heads = {4, 8, 8};
    refused(m, d, {"qwen35.attention.head_count", "an array of 3", "expected an array of 4"});
}

TEST_CASE("draft blocks alone are rejected, and the error says how to load them") {
    const Device device = cpu_device();
    Model model;
    for (Packaging packaging : {Packaging::mtp, Packaging::mtp_bare}) {
        const Status s = load(device, tiny(Family::qwen35, packaging), {}, &model);
        CHECK(s.code == Code::unsupported);
        CHECK(s.text.find("--mtp-file") != std::string::npos);
    }
    const Status s = load(device, tiny(Family::qwen35, Packaging::mtp), tiny(Family::qwen35, Packaging::trunk), &model);
    CHECK(s.text.find("swap the two files") != std::string::npos);
}
