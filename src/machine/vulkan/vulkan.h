// machine/vulkan/vulkan: any Vulkan GPU as a Backend.
//
// What    Opening: device, shaders, pipelines, self-test; the report of what they found.
// Thread  a Backend may be shared by all threads.
// Tests   back-end equivalence, row invariance, commit equivalence, chunk invariance: tests/test_vulkan_model.cpp.
#pragma once
#ifndef AUSPEX_NO_VULKAN
#include "../backend.h"
#include "../pool.h"
#include "selftest.h"
#include "tune_attend.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {
namespace vk {

/// What models and contexts of one device share.
struct OpenDevice {
    GpuRef gpu;
    std::unique_ptr<Pipelines> pipelines;
    SelfTest selftest;
    bool shuffles = false;                     ///< eight neighbours exchange values, which specialised kernels need
    bool matrix = false;                       ///< few rows: matrix units, laid out as matvec_mma.comp wants them
    bool gemm_matrix = false;                  ///< many rows: matrix units of the shape gemm_mma.comp wants
    AttendKernel attend = AttendKernel::rows;  ///< of prompts
    /// Models with at most this many bytes of weights do not use matrix units, and their prompts run on the step
    /// kernels, which round neither weights nor activations to halves. Launches dominate the time of such small models.
    uint64_t small_bytes = 0;
    std::string matrix_verdict;  ///< of `matrix`, for the report
    Allocator allocator;
    Logger log;
    std::unique_ptr<Pool> jobs;  ///< of the application's threads; null: each load starts its own
    double max_submit_us = 0;    ///< DeviceOptions::max_submit_ms
};
using OpenDeviceRef = std::shared_ptr<OpenDevice>;

/// Opens the device and asks it what it can do: the first half of open_vulkan(), for tests and tools.
Result<OpenDeviceRef> open_device(const DeviceOptions& options, const OpenDetail& detail = {});
/// A machine on an open device: the second half.
std::shared_ptr<Backend> make_backend(OpenDeviceRef device);

}  // namespace vk

/// Opens a Vulkan device as a machine.
///
/// options   as Device::open takes them; `pipeline_cache` spares most of the start.
/// errors    no_device, bad_argument (see open_gpu); unsupported: the device fails what no kernel can
///           do without (the text says what).
/// cost      50-500 ms, the driver's; a tenth with a pipeline cache.
Result<std::shared_ptr<Backend>> open_vulkan(const DeviceOptions& options, const vk::OpenDetail& detail = {});

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
#endif  // AUSPEX_NO_VULKAN
