package org.apache.rocketmq.test.base;

import com.google.gson.JsonObject;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs test classes and prints one line with a JSON object per test: `class`, `test`, `seconds`, `status`
 * (passed, failed, cannot, ignored, late) and `error`. Each such line starts with "@ ".
 *
 * <p>Arguments: the number of classes that run side by side, the time limit of a class in seconds, and the names
 * of the classes.
 */
public final class Run {
    private static final PrintStream OUTPUT = System.out;
    private static final String UNFINISHED = "(whole class)";

    private Run() {}

    public static void main(String[] arguments) throws Exception {
        int parallel = Integer.parseInt(arguments[0]);
        long limit = Long.parseLong(arguments[1]);
        List<String> names = Arrays.asList(arguments).subList(2, arguments.length);
        System.setOut(System.err);
        BaseConf.mqClients = new ClientsOfThread();
        ExecutorService runners = Executors.newFixedThreadPool(parallel);
        for (String name : names) {
            runners.execute(() -> runClass(name, limit));
        }
        runners.shutdown();
        runners.awaitTermination(Long.MAX_VALUE, TimeUnit.SECONDS);
        OUTPUT.flush();
        Runtime.getRuntime().halt(0); // shutdown hooks of RocketMQ's classes wait for servers
    }

    private static void runClass(String name, long limit) {
        ExecutorService thread = Executors.newSingleThreadExecutor();
        long begin = System.nanoTime();
        Future<?> run = thread.submit(() -> {
            JUnitCore core = new JUnitCore();
            core.addListener(new Report());
            core.run(Class.forName(name));
            return null;
        });
        try {
            run.get(limit, TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            print(name, UNFINISHED, "late", begin, "not finished after " + limit + " s");
        } catch (Exception error) {
            print(name, UNFINISHED, "failed", begin, trace(error));
        }
        thread.shutdownNow();
    }

    private static final class Report extends RunListener {
        private final Map<Description, Long> begins = new ConcurrentHashMap<>();
        private final Map<Description, Failure> failures = new ConcurrentHashMap<>();

        @Override
        public void testStarted(Description test) {
            begins.put(test, System.nanoTime());
        }

        @Override
        public void testFailure(Failure failure) {
            Description test = failure.getDescription();
            if (begins.containsKey(test)) {
                failures.putIfAbsent(test, failure);
            } else { // of a method for the whole class
                report(test.getClassName(), UNFINISHED, System.nanoTime(), failure);
            }
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            testFailure(failure);
        }

        @Override
        public void testIgnored(Description test) {
            print(test.getClassName(), test.getMethodName(), "ignored", System.nanoTime(), "");
        }

        @Override
        public void testFinished(Description test) {
            report(test.getClassName(), test.getMethodName(), begins.get(test), failures.get(test));
        }

        private static void report(String name, String test, long begin, Failure failure) {
            if (failure == null) {
                print(name, test, "passed", begin, "");
                return;
            }
            Throwable cause = failure.getException();
            while (cause.getCause() != null && !(cause instanceof NotPossible)) {
                cause = cause.getCause();
            }
            boolean cannot = cause instanceof NotPossible;
            String error = cannot ? cause.getMessage() : trace(failure.getException());
            print(name, test, cannot ? "cannot" : "failed", begin, error);
        }
    }

    private static String trace(Throwable error) {
        StringWriter text = new StringWriter();
        error.printStackTrace(new PrintWriter(text));
        return text.toString();
    }

    private static void print(String name, String test, String status, long begin, String error) {
        JsonObject line = new JsonObject();
        line.addProperty("class", name);
        line.addProperty("test", test == null ? UNFINISHED : test);
        line.addProperty("status", status);
        line.addProperty("seconds", (System.nanoTime() - begin) / 1_000_000 / 1e3);
        line.addProperty("error", error);
        synchronized (OUTPUT) {
            OUTPUT.println("@ " + line);
            OUTPUT.flush();
        }
    }
}
