// engine/model: what Device and Model hold.
//
// Owns    opening devices, loading a file into a LoadedModel, and the facts about it.
// Reads   everything below: file, gguf, token, chat, plan, machines.
// Serves  session; the door.
// Thread  immutable once built.
// Laws    HotPath: every bad file is a Status, tests/test_model.cpp.
#pragma once
#include "../base/file.h"
#include "../base/token.h"
#include "../machine/backend.h"

namespace auspex {

struct Device::Impl {
    DeviceOptions options;
    std::shared_ptr<detail::Backend> machine;
};

struct Model::Impl {
    // In this order: what stands above is used by what stands below, and goes last.
    std::shared_ptr<Device::Impl> device;
    std::vector<detail::File> files;
    detail::Gguf gguf;
    detail::Plan plan;
    detail::Tokenizer tokenizer;
    ModelInfo info;
    std::shared_ptr<detail::LoadedModel> program;
};

namespace detail {
/// Decides which layers' experts stay in the system's memory, by LoadOptions::host_expert_layers, before anything
/// is loaded. A pure function of the file, the options and the device's limit. errors: bad_argument.
Status place_experts(Model::Impl& model, const LoadOptions& options);
/// Fills in all facts of a model but weight_bytes.
void describe_model(const Plan& plan, const Gguf& gguf, ModelInfo* to);
/// Opens a GGUF file and, of a split model, its other shards; no tensor is read. `files` gets what `to` looks into.
Status open_gguf(const char* path, std::vector<File>* files, Gguf* to);
/// Adds the draft blocks of LoadOptions::mtp_file to a model's table, if one is named.
Status add_mtp_file(const LoadOptions& options, std::vector<File>* files, Gguf* model);
}  // namespace detail

}  // namespace auspex
