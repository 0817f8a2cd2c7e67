// A test with the Go client of RocketMQ 5 and `dledger dev`: `go test`.
package orders

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// startBroker starts a broker on free ports, and returns the endpoints for RocketMQ 5 clients. The broker ends
// with this process, because it watches its stdin.
func startBroker(t *testing.T) string {
	t.Helper()
	process := exec.Command("dledger", "dev", "--port", "0", "--json", "--stop-with-stdin")
	process.Stderr = os.Stderr
	stdin, err := process.StdinPipe()
	check(t, err)
	stdout, err := process.StdoutPipe()
	check(t, err)
	check(t, process.Start())
	t.Cleanup(func() {
		stdin.Close()
		process.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n') // once messages can be sent
	check(t, err)
	var addresses struct{ Grpc string }
	check(t, json.Unmarshal(line, &addresses))
	return addresses.Grpc
}

func TestAnOrderIsReceived(t *testing.T) {
	rocketmq.EnableSsl = false
	os.Setenv("mq.consoleAppender.enabled", "true") // else the client writes its log to the home directory
	rocketmq.ResetLogger()
	config := &rocketmq.Config{Endpoint: startBroker(t), ConsumerGroup: "billing", Credentials: &credentials.SessionCredentials{}}

	producer, err := rocketmq.NewProducer(config, rocketmq.WithTopics("orders"))
	check(t, err)
	check(t, producer.Start())
	defer producer.GracefulStop()
	_, err = producer.Send(context.Background(), &rocketmq.Message{Topic: "orders", Body: []byte("two teapots")})
	check(t, err)

	consumer, err := rocketmq.NewSimpleConsumer(config,
		rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{"orders": rocketmq.SUB_ALL}))
	check(t, err)
	check(t, consumer.Start())
	defer consumer.GracefulStop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		messages, err := consumer.Receive(context.Background(), 1, 30*time.Second)
		if err != nil {
			continue // no message yet
		}
		if body := string(messages[0].GetBody()); body != "two teapots" {
			t.Fatalf("received %q", body)
		}
		check(t, consumer.Ack(context.Background(), messages[0]))
		return
	}
	t.Fatal("no order within a minute")
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
