// Rust: the functions it needs, declared by hand. rustc client.rs -L FOLDER, with libauspex.so in FOLDER.
use std::ffi::{c_char, c_void, CStr, CString};
use std::io::Write;
use std::ptr::{null, null_mut};

#[repr(C)]
struct Error {
    struct_size: u32,
    code: i32,
    text: [c_char; 512],
}
type OnEvent = extern "C" fn(*const c_void, *mut c_void) -> i32;

#[link(name = "auspex")]
extern "C" {
    fn auspex_code_name(code: i32) -> *const c_char;
    fn auspex_device_open(options: *const c_void, device: *mut *mut c_void, e: *mut Error) -> i32;
    fn auspex_device_free(device: *mut c_void);
    fn auspex_model_load(device: *const c_void, path: *const c_char, options: *const c_void, model: *mut *mut c_void,
                         e: *mut Error) -> i32;
    fn auspex_model_free(model: *mut c_void);
    fn auspex_session_create(model: *const c_void, options: *const c_void, session: *mut *mut c_void,
                             e: *mut Error) -> i32;
    fn auspex_session_free(session: *mut c_void);
    fn auspex_session_sync(session: *mut c_void, ids: *const i32, n_ids: usize, marks: *const c_void, n_marks: usize,
                           report: *mut c_void, e: *mut Error) -> i32;
    fn auspex_session_next(session: *mut c_void, sampling: *const c_void, ids: *mut i32, capacity: usize,
                           n_ids: *mut usize, e: *mut Error) -> i32;
    fn auspex_encode(model: *const c_void, text: *const c_char, n_text: usize, flags: u32, ids: *mut i32,
                     capacity: usize, n_ids: *mut usize, e: *mut Error) -> i32;
    fn auspex_decode(model: *const c_void, ids: *const i32, n_ids: usize, flags: u32, text: *mut u8, capacity: usize,
                     length: *mut usize, e: *mut Error) -> i32;
    fn auspex_chat(session: *mut c_void, json: *const c_char, n_json: usize, options: *const c_void, on_event: OnEvent,
                   user: *mut c_void, e: *mut Error) -> i32;
}

fn check(call: impl FnOnce(*mut Error) -> i32) -> Result<(), String> {
    let mut e = Error { struct_size: std::mem::size_of::<Error>() as u32, code: 0, text: [0; 512] };
    if call(&mut e) == 0 {
        return Ok(());
    }
    let (name, text) = unsafe { (CStr::from_ptr(auspex_code_name(e.code)), CStr::from_ptr(e.text.as_ptr())) };
    Err(format!("{}: {}", name.to_string_lossy(), text.to_string_lossy()))
}

/// A handle, freed when it goes out of scope, in any order.
struct Handle(*mut c_void, unsafe extern "C" fn(*mut c_void));
impl Drop for Handle {
    fn drop(&mut self) {
        unsafe { self.1(self.0) }
    }
}
fn make(free: unsafe extern "C" fn(*mut c_void), call: impl FnOnce(*mut *mut c_void, *mut Error) -> i32)
        -> Result<Handle, String> {
    let mut made = null_mut();
    check(|e| call(&mut made, e)).map(|_| Handle(made, free))
}

extern "C" fn cancel(_event: *const c_void, _user: *mut c_void) -> i32 {
    1
}

fn main() -> Result<(), String> {
    let path = CString::new(std::env::args().nth(1).unwrap()).unwrap();
    let missing = CString::new("no-such-file.gguf").unwrap();
    let device = make(auspex_device_free, |to, e| unsafe { auspex_device_open(null(), to, e) })?;
    let load = |path: &CString| {
        make(auspex_model_free, |to, e| unsafe { auspex_model_load(device.0, path.as_ptr(), null(), to, e) })
    };
    println!("{}", load(&missing).err().unwrap());
    let model = load(&path)?;
    let session = make(auspex_session_free, |to, e| unsafe { auspex_session_create(model.0, null(), to, e) })?;

    let prompt = "2026-03-14 08:00 Pump-3 status=nominal temp=61C";
    let (mut ids, mut n, mut text, mut length) = ([0i32; 100], 0usize, [0u8; 4000], 0usize);
    check(|e| unsafe {
        auspex_encode(model.0, prompt.as_ptr().cast(), prompt.len(), 0, ids.as_mut_ptr(), 100, &mut n, e)
    })?;
    check(|e| unsafe { auspex_session_sync(session.0, ids.as_ptr(), n, null(), 0, null_mut(), e) })?;
    for _ in 0..32 {
        check(|e| unsafe { auspex_session_next(session.0, null(), ids.as_mut_ptr(), 9, &mut n, e) })?;
        check(|e| unsafe { auspex_decode(model.0, ids.as_ptr(), n, 0, text.as_mut_ptr(), 4000, &mut length, e) })?;
        std::io::stdout().write_all(&text[..length]).unwrap();
    }
    println!();

    let request = r#"{"messages": [{"role": "user", "content": "Write a Python function."}]}"#;
    let stopped = check(|e| unsafe {
        auspex_chat(session.0, request.as_ptr().cast(), request.len(), null(), cancel, null_mut(), e)
    });
    println!("{}", stopped.err().unwrap().split(':').next().unwrap());
    Ok(())
}
