package org.apache.rocketmq.test.base;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/** Requests to servers.py, which starts and stops the NameServer and the brokers. */
final class Servers {
    private static final int PORT = Integer.getInteger("suite.control");

    private Servers() {}

    /** The address (host:port) of the NameServer. */
    static String nameServer() {
        return request("name_server");
    }

    /** Start a broker, and return its address once it accepts messages. */
    static String start(String broker, String cluster) {
        return request("start " + broker + " " + cluster);
    }

    /** Stop a broker with SIGTERM. Returns once the process has ended. */
    static void stop(String broker) {
        request("stop " + broker);
    }

    /** Host:port of the port of this broker for RocketMQ 5 clients. */
    static String grpc(String broker) {
        return request("grpc " + broker);
    }

    private static String request(String line) {
        try (Socket socket = new Socket("127.0.0.1", PORT)) {
            socket.getOutputStream().write((line + "\n").getBytes(StandardCharsets.UTF_8));
            InputStreamReader bytes = new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8);
            String response = new BufferedReader(bytes).readLine();
            if (response == null || !response.startsWith("ok ")) {
                throw new IllegalStateException(line + ": " + response);
            }
            return response.substring("ok ".length());
        } catch (IOException error) {
            throw new IllegalStateException(line, error);
        }
    }
}
