-- LuaJIT: its FFI reads auspex.h itself. luajit client.lua auspex.h MODEL, with libauspex.so where the loader looks.
local ffi = require("ffi")
local header = io.open(arg[1]):read("*a")
for what, instead in pairs({ ["\\\n"] = " ", ["AUSPEX_C_API "] = "" }) do header = header:gsub(what, instead) end
for _, what in ipairs({ "/%*.-%*/", "#ifdef __cplusplus.-#endif", "#[^\n]*" }) do header = header:gsub(what, "") end
ffi.cdef(header)
local C = ffi.load("auspex")

local function check(f, ...)
    local e = ffi.new("auspex_error")
    e.struct_size = ffi.sizeof(e)
    local arguments = { ... }
    arguments[select("#", ...) + 1] = e
    if f(unpack(arguments, 1, select("#", ...) + 1)) ~= 0 then
        error(ffi.string(C.auspex_code_name(e.code)) .. ": " .. ffi.string(e.text), 0)
    end
end

-- An object of the library, freed by the garbage collector. Free in any order.
local function make(kind, f, ...)
    local to = ffi.new("auspex_" .. kind .. "*[1]")
    local arguments, n = { ... }, select("#", ...)
    arguments[n + 1] = to
    check(f, unpack(arguments, 1, n + 1))
    return ffi.gc(to[0], C["auspex_" .. kind .. "_free"])
end

local device = make("device", C.auspex_device_open, nil)
print(select(2, pcall(make, "model", C.auspex_model_load, device, "no-such-file.gguf", nil)))
local model = make("model", C.auspex_model_load, device, arg[2], nil)
local session = make("session", C.auspex_session_create, model, nil)

local prompt = "2026-03-14 08:00 Pump-3 status=nominal temp=61C"
local ids, n, text, length = ffi.new("int32_t[100]"), ffi.new("size_t[1]"), ffi.new("char[4000]"), ffi.new("size_t[1]")
check(C.auspex_encode, model, prompt, #prompt, 0, ids, 100, n)
check(C.auspex_session_sync, session, ids, n[0], nil, 0, nil)
for _ = 1, 32 do
    check(C.auspex_session_next, session, nil, ids, C.AUSPEX_MAX_TOKENS, n)
    check(C.auspex_decode, model, ids, n[0], 0, text, 4000, length)
    io.write(ffi.string(text, length[0]))
end
print()

local request = '{"messages": [{"role": "user", "content": "Write a Python function."}]}'
local on_event = ffi.cast("auspex_on_event", function() return 1 end)  -- not 0 cancels
local ok, why = pcall(check, C.auspex_chat, session, request, #request, nil, on_event, nil)
on_event:free()
print(not ok and why:match("^%a+"))
