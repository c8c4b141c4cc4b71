// chain.glsl: a stage of dispatches that waits for the one before it without a barrier between them.
//
// A barrier lets no workgroup of a stage start before the last one of the stage before has ended. Chained, a stage
// starts as soon as there is room, loads what no stage since the last barrier writes (weights, states), and waits until
// the workgroups of the stage before have counted themselves. On an H100 that saves 1.2 us a stage.
//
// Needs a device that starts the workgroups of a queue in order: those of a dispatch only when all of the dispatches
// before it have started. Then what is waited for is running or has ended, and the wait ends. Vulkan does not promise
// that: DeviceTraits::starts_in_order says where it is known.
//
// The including kernel defines CHAIN_WORDS, the words of the step buffer as a coherent array, has a member `chain` of
// its arguments, and a specialization constant CHAINED: 0 leaves all of this out. What it reads of the stage before
// must be coherent, because a core's cache may hold what an earlier stage left there. Every workgroup ends with
// chain_done(), or, when it has neither waited nor written anything, with chain_skip().
#extension GL_KHR_memory_scope_semantics : require

// Makes what invocations of the workgroup wrote or saw known to all of them.
void chain_meet() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
        gl_SemanticsAcquireRelease);
}

void chain_fence() {
    memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
}

// Returns when the stage before has written all of its results.
void chain_wait() {
    if (CHAINED == 0u || args.chain.n_await == 0u) return;
    if (gl_LocalInvocationIndex == 0u) {
        [[dont_unroll]] while (atomicLoad(CHAIN_WORDS[args.chain.await_word], gl_ScopeDevice, 0, 0)
            < args.chain.n_await) {}
        chain_fence();
    }
    chain_meet();
}

// Counts a workgroup that had nothing to do.
void chain_skip() {
    if (CHAINED == 0u || args.chain.done_word == 0u) return;
    if (gl_LocalInvocationIndex == 0u) atomicAdd(CHAIN_WORDS[args.chain.done_word], 1u);
}

// Counts the workgroup, which has written all of its results.
void chain_done() {
    if (CHAINED == 0u || args.chain.done_word == 0u) return;
    chain_meet();
    if (gl_LocalInvocationIndex == 0u) chain_fence();
    chain_skip();
}
