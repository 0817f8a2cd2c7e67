import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.ExpressionMessageFilter;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;

/**
 * RocketMQ's filters on generated expressions and messages.
 *
 * <p>Lines of input, with texts in Base64: "M name value name value ..." adds a message, "S expression" evaluates SQL92 and
 * "T expression" tags on all of them. The answer to an expression is one letter a message: T matches, F does not match, N is
 * NULL, X throws; or "refused". Answers start with "@ ", as RocketMQ's logger writes to the same output.
 */
public final class Filters {
    private static final List<Map<String, String>> MESSAGES = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder output = new StringBuilder();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", -1);
            switch (words[0]) {
                case "M" -> MESSAGES.add(properties(words));
                case "S" -> say(output, sql(text(words[1])));
                case "T" -> say(output, tags(text(words[1])));
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.out.print(output);
        System.exit(0);
    }

    private static void say(StringBuilder output, String answer) {
        output.append("@ ").append(answer).append('\n');
    }

    private static String text(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    private static Map<String, String> properties(String[] words) {
        Map<String, String> found = new HashMap<>();
        for (int i = 1; i + 1 < words.length; i += 2) {
            found.put(text(words[i]), text(words[i + 1]));
        }
        return found;
    }

    private static String sql(String text) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable refused) {
            return "refused";
        }
        StringBuilder results = new StringBuilder();
        for (Map<String, String> message : MESSAGES) {
            try {
                Object result = expression.evaluate(new MessageEvaluationContext(message));
                results.append(result == null ? 'N' : (Boolean) result ? 'T' : 'F');
            } catch (Throwable thrown) {
                results.append('X');
            }
        }
        return results.toString();
    }

    private static String tags(String text) {
        ExpressionMessageFilter filter;
        try {
            filter = new ExpressionMessageFilter(FilterAPI.build("topic", text, "TAG"), null, null);
        } catch (Exception refused) {
            return "refused";
        }
        StringBuilder results = new StringBuilder();
        for (Map<String, String> message : MESSAGES) {
            String tag = message.get("TAGS");
            long code = tag == null || tag.isEmpty() ? 0 : tag.hashCode();
            results.append(filter.isMatchedByConsumeQueue(code, null) ? 'T' : 'F');
        }
        return results.toString();
    }
}
