import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's mqadmin, one command line on stdin after the other: a JVM for each would take seconds. */
public final class Mqadmin {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            System.setOut(new PrintStream(said, true));
            System.setErr(System.out);
            MQAdminStartup.main0(line.split("\t"), null);
            said.toString().lines().forEach(one -> out.println("@ " + one));
            out.println("@ END");
            out.flush();
        }
        System.exit(0);
    }
}
