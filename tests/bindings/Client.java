// Java: JNI over client_jni.c. Text travels as bytes, because JNI's own strings are not UTF-8.
import java.nio.charset.StandardCharsets;

final class Client implements AutoCloseable {
    /** Receives a piece of text; true cancels. */
    interface OnText {
        boolean text(byte[] utf8);
    }

    private long handle;

    Client(String path) {
        handle = open(utf8(path));
    }
    @Override
    public void close() {
        free(handle);
        handle = 0;
    }

    private static native long open(byte[] path);
    private static native void free(long handle);
    private static native void tokens(long handle, byte[] prompt, int n, OnText onText);
    private static native void chat(long handle, byte[] request, OnText onText);

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    public static void main(String[] arguments) {
        System.load(arguments[0]);
        try {
            new Client("no-such-file.gguf").close();
        } catch (RuntimeException e) {
            System.out.println(e.getMessage());
        }
        try (Client client = new Client(arguments[1])) {
            tokens(client.handle, utf8("2026-03-14 08:00 Pump-3 status=nominal temp=61C"), 32, utf8 -> {
                System.out.write(utf8, 0, utf8.length);
                return false;
            });
            System.out.println();
            chat(client.handle, utf8("{\"messages\": [{\"role\": \"user\", \"content\": \"Write a line.\"}]}"), utf8 -> true);
        } catch (RuntimeException e) {
            System.out.println(e.getMessage().split(":")[0]);
        }
    }
}
