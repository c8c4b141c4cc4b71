#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "../src/base/disk_file.h"
#include "../src/engine/model.h"
#include "../src/plan/arch.h"
#include "tiny.h"

using namespace auspex;
using namespace test;

namespace {

const std::string kDemo = repo_dir() + "/examples/models/auspex-demo.gguf";

const FileValue* find(const FileInfo& file, const std::string& key) {
    for (const FileValue& v : file.metadata)
        if (v.key == key) return &v;
    return nullptr;
}

/// The text after encoding and decoding.
std::string text_of(const Model& model, const char* text) { return model.decode(model.encode(text).value()).value(); }

}  // namespace

TEST_CASE("a file's header tells what a loaded model tells") {
    FileInfo file;
    REQUIRE(read_file_info(kDemo.c_str()).get(file).ok());
    REQUIRE(file.plan_status.ok());
    const Model model = load_model(cpu_device(), kDemo);
    const ModelInfo &a = file.model, &b = model.info();
    CHECK(a.architecture == b.architecture);
    CHECK(a.name == b.name);
    CHECK(a.n_layer == b.n_layer);
    CHECK(a.n_attention == b.n_attention);
    CHECK(a.n_mtp == b.n_mtp);
    CHECK(a.d_model == b.d_model);
    CHECK(a.n_vocab == b.n_vocab);
    CHECK(a.n_context == b.n_context);
    CHECK(a.n_parameter == b.n_parameter);
    CHECK(a.file_bytes == b.file_bytes);
    CHECK(a.weight_bytes == 0);
    CHECK(a.chat_template.style == b.chat_template.style);
    CHECK(file.n_file == 1);
    CHECK(file.mtp.size() == b.n_mtp);
    CHECK(model.describe_plan().find(file.trunk) != std::string::npos);
}

TEST_CASE("a name or a chat template that is no text is refused") {
    const std::vector<std::byte> bytes = tiny_qwen35();
    detail::Gguf file;
    REQUIRE(detail::Gguf::parse(bytes).get(file).ok());
    detail::Plan plan;
    REQUIRE(detail::make_plan(file, {}).get(plan).ok());
    ModelInfo info;
    CHECK(detail::describe_model(plan, file, &info).ok());
    CHECK(info.name == "tiny");
    for (const char* key : {"general.name", "tokenizer.chat_template"}) {
        std::vector<detail::Meta> meta;
        for (const detail::Meta& m : file.meta())
            if (m.key != key) meta.push_back(m);
        meta.push_back(*file.find("tokenizer.ggml.tokens"));  // an array of strings
        meta.back().key = key;
        detail::Gguf other;
        REQUIRE(detail::Gguf::gather(std::move(meta), file.tensors(), bytes.size()).get(other).ok());
        const Status s = detail::describe_model(plan, other, &info);
        CHECK(s.code == Code::bad_file);
        CHECK(s.text.find(std::string("'") + key + "'") != std::string::npos);
        CHECK(s.text.find("a string") != std::string::npos);
    }
    // A file of which only the template is wrong tells no model.
    std::ifstream demo(kDemo, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(demo), {}};
    const std::string key = "tokenizer.chat_template";
    const size_t type = text.find(key) + key.size();
    REQUIRE(type < text.size());
    text[type] = 10;  // a u64 instead of a string
    const uint32_t n_text = detail::load<uint32_t>(reinterpret_cast<const std::byte*>(text.data()) + type + 4);
    text.erase(type + 12, n_text);
    const std::string name = detail::say("auspex-test-", detail::unique_number(), ".gguf"),
                      path = (std::filesystem::temp_directory_path() / name).string();
    std::ofstream(path, std::ios::binary) << text;
    FileInfo wrong;
    const Status read = read_file_info(path.c_str()).get(wrong);
    std::filesystem::remove(path);
    REQUIRE_MESSAGE(read.ok(), read.message());
    CHECK(wrong.plan_status.code == Code::bad_file);
    CHECK(wrong.plan_status.text.find("'tokenizer.chat_template'") != std::string::npos);
    CHECK(wrong.model.architecture.empty());
    CHECK((wrong.model.n_layer == 0 && wrong.trunk.empty()));
}

TEST_CASE("metadata values keep their type, length and first elements") {
    FileInfo file;
    REQUIRE(read_file_info(kDemo.c_str()).get(file).ok());
    const FileValue* architecture = find(file, "general.architecture");
    REQUIRE(architecture != nullptr);
    CHECK(architecture->type == "string");
    CHECK(!architecture->is_array);
    CHECK(architecture->elements == std::vector<std::string>{"qwen35"});
    const FileValue* tokens = find(file, "tokenizer.ggml.tokens");
    REQUIRE(tokens != nullptr);
    CHECK(tokens->is_array);
    CHECK(tokens->n == 8192);
    CHECK(tokens->elements.size() == 8);
}

TEST_CASE("the MTP block is left out where it is not wanted") {
    LoadOptions options;
    options.mtp = false;
    FileInfo file;
    REQUIRE(read_file_info(kDemo.c_str(), options).get(file).ok());
    CHECK(file.model.n_mtp == 0);
    CHECK(file.mtp.empty());
}

TEST_CASE("a vocabulary encodes and decodes as the model does") {
    Vocabulary vocabulary;
    REQUIRE(Vocabulary::load(kDemo.c_str()).get(vocabulary).ok());
    const Model model = load_model(cpu_device(), kDemo);
    CHECK(vocabulary.n_token() == model.info().n_vocab);
    for (const char* text : {"", "Hello world", "<|im_start|>user\n", "caf\xc3\xa9 \xff"}) {
        EncodeOptions special;
        special.special = true;
        CHECK(vocabulary.encode(text).value() == model.encode(text).value());
        CHECK(vocabulary.encode(text, special).value() == model.encode(text, special).value());
        CHECK(vocabulary.decode(vocabulary.encode(text).value()).value() == text_of(model, text));
    }
    for (Token id = 0; id < static_cast<Token>(vocabulary.n_token()); ++id)
        if (vocabulary.is_end(id) != model.is_end(id)) FAIL("is_end differs at token ", id);
}

TEST_CASE("files that cannot be read give a Status, and an empty vocabulary empty values") {
    CHECK(read_file_info(nullptr).status().code == Code::bad_argument);
    CHECK(read_file_info("no-such-file.gguf").status().code == Code::not_found);
    CHECK(Vocabulary::load(nullptr).status().code == Code::bad_argument);
    CHECK(Vocabulary::load("no-such-file.gguf").status().code == Code::not_found);
    const Vocabulary empty;
    CHECK(!empty);
    CHECK(empty.n_token() == 0);
    CHECK(empty.encode("x").status().code == Code::bad_argument);
    CHECK(empty.decode(std::vector<Token>{1}).status().code == Code::bad_argument);
    CHECK(!empty.is_end(1));
}
