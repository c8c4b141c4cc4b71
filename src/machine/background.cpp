#include "background.h"

namespace auspex {
inline namespace AUSPEX_VERSION_NAMESPACE {
namespace detail {

Background::~Background() {
    if (!started_) return;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ends_ = true;
    }
    changed_.notify_all();
    thread_.join();  // after the work that is left
}

bool Background::start() {
    int error = 0;
    return started_ = thread_.start(work_loop, this, &error);
}

void Background::run(Work work, void* context) {
    if (!started_) return work(context);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !work_; });
    work_ = work;
    context_ = context;
    changed_.notify_all();
}

void Background::wait() {
    if (!started_) return;
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !work_; });
}

void* Background::work_loop(void* me) {
    Background& b = *static_cast<Background*>(me);
    std::unique_lock<std::mutex> lock(b.mutex_);
    for (;;) {
        b.changed_.wait(lock, [&b] { return b.work_ || b.ends_; });
        if (!b.work_) return nullptr;
        lock.unlock();
        b.work_(b.context_);  // the owner changes it only when it is null
        lock.lock();
        b.work_ = nullptr;
        b.changed_.notify_all();
    }
}

}  // namespace detail
}  // namespace AUSPEX_VERSION_NAMESPACE
}  // namespace auspex
