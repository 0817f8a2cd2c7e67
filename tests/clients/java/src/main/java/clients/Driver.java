package clients;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/** The released Java client, told what to do by lines of JSON on stdin (see remote.py). */
public final class Driver {
    private static final long CLOSE_MS = 20_000;

    private static final Duration AWAIT = Duration.ofMillis(1500);

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final Gson gson = new Gson();
    private final PrintStream out = System.out;
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final Map<Integer, Closeable> clients = new ConcurrentHashMap<>();
    private final Map<Integer, Transaction> transactions = new ConcurrentHashMap<>();
    private final Map<Integer, MessageView> messages = new ConcurrentHashMap<>();
    private final Map<Integer, CompletableFuture<JsonElement>> asked = new ConcurrentHashMap<>();
    private final AtomicInteger numbers = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        new Driver().serve();
        System.exit(0);
    }

    private void serve() throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonObject request = gson.fromJson(line, JsonObject.class);
            if (request.has("answer")) {
                asked.remove(request.get("answer").getAsInt()).complete(request.get("result"));
            } else {
                threads.execute(() -> answer(request));
            }
        }
    }

    private void answer(JsonObject request) {
        JsonObject answer = new JsonObject();
        answer.add("id", request.get("id"));
        try {
            answer.add("ok", done(request));
        } catch (Throwable error) {
            answer.addProperty("error", error.getClass().getSimpleName());
            answer.addProperty("text", explained(error));
        }
        say(answer);
    }

    /** With its causes: a client that does not start says why in one of them. */
    private static String explained(Throwable error) {
        Throwable cause = error.getCause();
        String text = String.valueOf(error.getMessage());
        return cause == null ? text : text + "; " + cause.getClass().getSimpleName() + ": " + explained(cause);
    }

    private void say(JsonObject line) {
        synchronized (out) {
            out.println(gson.toJson(line));
            out.flush();
        }
    }

    private JsonElement done(JsonObject request) throws Exception {
        switch (request.get("do").getAsString()) {
            case "producer":
                return kept(producer(request));
            case "simple":
                return kept(simple(request));
            case "push":
                return kept(push(request));
            case "send":
                return send(request);
            case "begin":
                int number = numbers.incrementAndGet();
                transactions.put(number, this.<Producer>client(request).beginTransaction());
                return gson.toJsonTree(number);
            case "commit":
                transactions.get(request.get("transaction").getAsInt()).commit();
                return null;
            case "rollback":
                transactions.get(request.get("transaction").getAsInt()).rollback();
                return null;
            case "recall":
                return gson.toJsonTree(this.<Producer>client(request)
                    .recallMessage(text(request, "topic"), text(request, "handle")).getMessageId().toString());
            case "receive":
                JsonArray found = new JsonArray();
                for (MessageView view : this.<SimpleConsumer>client(request)
                        .receive(request.get("most").getAsInt(), seconds(request))) {
                    found.add(shown(view));
                }
                return found;
            case "ack":
                this.<SimpleConsumer>client(request).ack(message(request));
                return null;
            case "change":
                this.<SimpleConsumer>client(request).changeInvisibleDuration(message(request), seconds(request));
                return null;
            case "close":
                close(clients.remove(request.get("client").getAsInt()));
                return null;
            default:
                throw new IllegalArgumentException(text(request, "do"));
        }
    }

    /** A client that renews its telemetry stream while it closes waits for that stream without end. */
    private static void close(Closeable client) throws InterruptedException {
        Thread closing = new Thread(() -> {
            try {
                client.close();
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        closing.setDaemon(true);
        closing.start();
        closing.join(CLOSE_MS);
    }

    private Producer producer(JsonObject request) throws Exception {
        ProducerBuilder builder = provider.newProducerBuilder().setClientConfiguration(configuration(request));
        builder.setTopics(gson.fromJson(request.get("topics"), String[].class));
        if (request.get("checks").getAsBoolean()) {
            builder.setTransactionChecker(view ->
                TransactionResolution.valueOf(asked(request, view).getAsString().toUpperCase()));
        }
        return builder.build();
    }

    private Closeable simple(JsonObject request) throws Exception {
        return provider.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(request))
            .setConsumerGroup(text(request, "group"))
            .setSubscriptionExpressions(subscription(request))
            .setAwaitDuration(AWAIT)
            .build();
    }

    private Closeable push(JsonObject request) throws Exception {
        return provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration(request))
            .setConsumerGroup(text(request, "group"))
            .setSubscriptionExpressions(subscription(request))
            .setMessageListener(view ->
                asked(request, view).getAsBoolean() ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE)
            .build();
    }

    private Map<String, FilterExpression> subscription(JsonObject request) {
        FilterExpressionType type =
            request.get("sql").getAsBoolean() ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(text(request, "topic"), new FilterExpression(text(request, "expression"), type));
    }

    private ClientConfiguration configuration(JsonObject request) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(text(request, "address"))
            .enableSsl(request.get("tls").getAsBoolean());
        if (!text(request, "namespace").isEmpty()) {
            builder.setNamespace(text(request, "namespace"));
        }
        if (request.has("account")) {
            String[] account = gson.fromJson(request.get("account"), String[].class);
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(account[0], account[1]));
        }
        return builder.build();
    }

    private JsonElement send(JsonObject request) throws Exception {
        JsonObject wanted = request.getAsJsonObject("message");
        MessageBuilder builder = provider.newMessageBuilder()
            .setTopic(text(wanted, "topic"))
            .setBody(Base64.getDecoder().decode(text(wanted, "body")));
        if (wanted.has("tag")) {
            builder.setTag(text(wanted, "tag"));
        }
        if (wanted.has("keys")) {
            builder.setKeys(text(wanted, "keys"));
        }
        if (wanted.has("message_group")) {
            builder.setMessageGroup(text(wanted, "message_group"));
        }
        if (wanted.has("delivery_timestamp")) {
            builder.setDeliveryTimestamp(wanted.get("delivery_timestamp").getAsLong() * 1000);
        }
        if (wanted.has("priority")) {
            builder.setPriority(wanted.get("priority").getAsInt());
        }
        wanted.getAsJsonObject("properties").entrySet()
            .forEach(entry -> builder.addProperty(entry.getKey(), entry.getValue().getAsString()));
        Message message = builder.build();
        Producer producer = client(request);
        SendReceipt receipt = request.has("transaction")
            ? producer.send(message, transactions.get(request.get("transaction").getAsInt()))
            : producer.send(message);
        JsonObject shown = new JsonObject();
        shown.addProperty("message_id", receipt.getMessageId().toString());
        shown.add("recall_handle", gson.toJsonTree(asFarAsItHas(receipt, SendReceipt.class, "getRecallHandle")));
        return shown;
    }

    private JsonObject shown(MessageView view) {
        int number = numbers.incrementAndGet();
        messages.put(number, view);
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        JsonObject shown = new JsonObject();
        shown.addProperty("number", number);
        shown.addProperty("message_id", view.getMessageId().toString());
        shown.addProperty("body", Base64.getEncoder().encodeToString(bytes));
        shown.addProperty("tag", view.getTag().orElse(null));
        shown.addProperty("message_group", view.getMessageGroup().orElse(null));
        shown.addProperty("delivery_attempt", view.getDeliveryAttempt());
        shown.add("properties", gson.toJsonTree(view.getProperties()));
        Object priority = asFarAsItHas(view, MessageView.class, "getPriority");
        shown.add("priority", gson.toJsonTree(priority instanceof Optional ? ((Optional<?>) priority).orElse(null) : null));
        shown.addProperty("corrupted", ((MessageViewImpl) view).isCorrupted());
        return shown;
    }

    /** What older clients do not offer is null. */
    private static Object asFarAsItHas(Object value, Class<?> type, String method) {
        try {
            return type.getMethod(method).invoke(value);
        } catch (ReflectiveOperationException error) {
            return null;
        }
    }

    /** What the scenario says of a message: how consuming it ended, or its transaction. */
    private JsonElement asked(JsonObject request, MessageView view) {
        int number = numbers.incrementAndGet();
        CompletableFuture<JsonElement> answer = new CompletableFuture<>();
        asked.put(number, answer);
        JsonObject question = new JsonObject();
        question.addProperty("ask", number);
        question.add("client", request.get("client"));
        question.add("message", shown(view));
        say(question);
        return answer.join();
    }

    private JsonElement kept(Closeable client) {
        int number = numbers.incrementAndGet();
        clients.put(number, client);
        return gson.toJsonTree(number);
    }

    @SuppressWarnings("unchecked")
    private <T> T client(JsonObject request) {
        return (T) clients.get(request.get("client").getAsInt());
    }

    private MessageView message(JsonObject request) {
        return messages.get(request.get("message").getAsInt());
    }

    private static Duration seconds(JsonObject request) {
        return Duration.ofSeconds(request.get("invisible_s").getAsLong());
    }

    private static String text(JsonObject from, String key) {
        return from.get(key).getAsString();
    }
}
