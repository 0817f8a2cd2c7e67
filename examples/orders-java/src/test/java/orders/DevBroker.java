package orders;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A broker in a process of its own, on free ports. It ends with this process, because it watches its stdin. */
final class DevBroker implements AutoCloseable {
    private static final Pattern NAME_SERVER = Pattern.compile("\"name_server\": \"([^\"]+)\"");

    /** host:port of the NameServer. */
    final String nameServer;
    private final Process process;

    /** Starts a broker, and returns once messages can be sent. */
    DevBroker() throws IOException {
        process = new ProcessBuilder("dledger", "dev", "--port", "0", "--json", "--stop-with-stdin")
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
        String line = new BufferedReader(
            new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8)).readLine();
        Matcher found = NAME_SERVER.matcher(line == null ? "" : line);
        if (!found.find()) {
            throw new IOException("the broker did not start");
        }
        nameServer = found.group(1);
    }

    @Override
    public void close() throws IOException, InterruptedException {
        process.getOutputStream().close();
        process.waitFor();
    }
}
