// engine/model: what a Device and a Model hold.
//
// Owns    opening devices, loading files into a LoadedModel, the facts about a model.
// Thread  immutable once built, but for the tree of the vocabulary, which has a lock; any thread may read.
// Test    tests/test_model.cpp.
#pragma once
#include "../base/file.h"
#include "../base/token.h"
#include "../grammar/vocab_trie.h"
#include "../machine/backend.h"
#include "memory_limit.h"

#include <atomic>
#include <mutex>

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {

struct Device::Impl {
    DeviceOptions options;
    std::shared_ptr<detail::Backend> machine;
    std::atomic<uint64_t> reserved_bytes{0};  ///< of all Reservations
};

struct Model::Impl {
    // Later members use earlier ones and are destroyed first.
    std::shared_ptr<Device::Impl> device;
    detail::Reservation reserved;  ///< of the weights; none on the CPU
    std::vector<detail::File> files;
    std::vector<detail::Block> copies;  ///< of bytes that the caller passed at an odd address
    uint64_t copied_bytes = 0;          ///< of files and bytes that are held as copies
    std::string packed_file;            ///< LoadOptions::packed_file
    detail::Gguf gguf;
    detail::Plan plan;
    detail::Tokenizer tokenizer;
    ModelInfo info;
    std::shared_ptr<detail::LoadedModel> program;
    std::mutex trie_lock;
    std::shared_ptr<const detail::VocabTrie> trie;  ///< null until vocab_trie() is called

    /// The vocabulary as a tree, made when it is first asked for.
    std::shared_ptr<const detail::VocabTrie> vocab_trie();
};

namespace detail {

/// Decides which layers keep their experts in the system's memory, by LoadOptions::host_expert_layers, before anything
/// is loaded. A pure function of the file, the options and the device's limit.
///
/// errors    bad_argument.
Status place_experts(Model::Impl& model, const LoadOptions& options);

/// The weights of `plan`, a plan of this model, for its back end; packed_file only of a model that is not loaded yet.
/// errors    as of find_weights(); bad_argument: packed_file with a model that is not from files.
Result<Weights> weights_of(const Model::Impl& model, const Plan& plan);

/// Fills in all facts of a model except weight_bytes.
/// errors    bad_file: its name or its chat template is no text.
Status describe_model(const Plan& plan, const Gguf& gguf, ModelInfo* to);

/// Opens a GGUF file and, if it is split, its other shards, and adds the MTP blocks of LoadOptions::mtp_file, if one is
/// named. Reads no tensor but scales of matrices. Without `copy` files are mapped even if the options ask for copies,
/// and copied_bytes says what copies would take.
Status open_files(const char* path, const LoadOptions& options, bool copy, Model::Impl* model);

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
