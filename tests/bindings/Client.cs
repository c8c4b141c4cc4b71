// C#: P/Invoke. mcs Client.cs; mono Client.exe MODEL, with libauspex.so where the loader looks.
using System;
using System.Runtime.InteropServices;
using System.Text;

static class Client
{
    [StructLayout(LayoutKind.Sequential)]
    struct Error
    {
        public uint StructSize;
        public int Code;
        [MarshalAs(UnmanagedType.ByValArray, SizeConst = 512)] public byte[] Text;
    }
    [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
    delegate int OnEvent(IntPtr e, IntPtr user);

    const string Library = "auspex";
    [DllImport(Library)] static extern IntPtr auspex_code_name(int code);
    [DllImport(Library)] static extern int auspex_device_open(IntPtr options, out IntPtr device, ref Error e);
    [DllImport(Library)] static extern void auspex_device_free(IntPtr device);
    [DllImport(Library)] static extern int auspex_model_load(IntPtr device, byte[] path, IntPtr options,
                                                             out IntPtr model, ref Error e);
    [DllImport(Library)] static extern void auspex_model_free(IntPtr model);
    [DllImport(Library)] static extern int auspex_session_create(IntPtr model, IntPtr options, out IntPtr session,
                                                                 ref Error e);
    [DllImport(Library)] static extern void auspex_session_free(IntPtr session);
    [DllImport(Library)] static extern int auspex_session_sync(IntPtr session, int[] ids, UIntPtr n, IntPtr marks,
                                                               UIntPtr nMarks, IntPtr report, ref Error e);
    [DllImport(Library)] static extern int auspex_session_next(IntPtr session, IntPtr sampling, [Out] int[] ids,
                                                               UIntPtr capacity, out UIntPtr n, ref Error e);
    [DllImport(Library)] static extern int auspex_encode(IntPtr model, byte[] text, UIntPtr nText, uint flags,
                                                         [Out] int[] ids, UIntPtr capacity, out UIntPtr n, ref Error e);
    [DllImport(Library)] static extern int auspex_decode(IntPtr model, int[] ids, UIntPtr n, uint flags,
                                                         [Out] byte[] text, UIntPtr capacity, out UIntPtr length,
                                                         ref Error e);
    [DllImport(Library)] static extern int auspex_chat(IntPtr session, byte[] json, UIntPtr nJson, IntPtr options,
                                                       OnEvent onEvent, IntPtr user, ref Error e);

    static Error error = new Error { StructSize = (uint)Marshal.SizeOf(typeof(Error)), Text = new byte[512] };

    static void Check(int code)
    {
        if (code == 0) return;
        var name = Marshal.PtrToStringAnsi(auspex_code_name(code));
        throw new Exception(name + ": " + Encoding.UTF8.GetString(error.Text).TrimEnd('\0'));
    }
    static byte[] Utf8(string text) { return Encoding.UTF8.GetBytes(text + "\0"); }

    static void Main(string[] arguments)
    {
        IntPtr device, model, session, none = IntPtr.Zero;
        Check(auspex_device_open(none, out device, ref error));
        try { Check(auspex_model_load(device, Utf8("no-such-file.gguf"), none, out model, ref error)); }
        catch (Exception e) { Console.WriteLine(e.Message); }
        Check(auspex_model_load(device, Utf8(arguments[0]), none, out model, ref error));
        Check(auspex_session_create(model, none, out session, ref error));

        var output = Console.OpenStandardOutput();
        var prompt = Encoding.UTF8.GetBytes("2026-03-14 08:00 Pump-3 status=nominal temp=61C");
        var ids = new int[100];
        var text = new byte[4000];
        UIntPtr n, length, zero = UIntPtr.Zero;
        Check(auspex_encode(model, prompt, (UIntPtr)prompt.Length, 0, ids, (UIntPtr)100, out n, ref error));
        Check(auspex_session_sync(session, ids, n, none, zero, none, ref error));
        for (int i = 0; i < 32; i++)
        {
            Check(auspex_session_next(session, none, ids, (UIntPtr)9, out n, ref error));
            Check(auspex_decode(model, ids, n, 0, text, (UIntPtr)4000, out length, ref error));
            output.Write(text, 0, (int)length);
        }
        Console.WriteLine();

        var request = Encoding.UTF8.GetBytes(@"{""messages"": [{""role"": ""user"", ""content"": ""Write a line.""}]}");
        OnEvent cancel = (e, user) => 1;
        try { Check(auspex_chat(session, request, (UIntPtr)request.Length, none, cancel, none, ref error)); }
        catch (Exception e) { Console.WriteLine(e.Message.Split(':')[0]); }
        GC.KeepAlive(cancel);
        auspex_device_free(device);  // in any order
        auspex_model_free(model);
        auspex_session_free(session);
    }
}
