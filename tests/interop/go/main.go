// What an application does with github.com/apache/rocketmq-client-go, by its first argument. It says the same
// lines as Client.java.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// Longer than between two looks at the routes (30 s).
const quiet = 75 * time.Second

func main() {
	rlog.SetLogLevel("error")
	servers, topic := primitive.NamesrvAddr{os.Args[2]}, os.Args[3]
	switch os.Args[1] {
	case "send":
		send(servers, topic, number(os.Args[4]), time.Duration(number(os.Args[5]))*time.Millisecond, os.Args[6:])
	case "orderly":
		consume(servers, topic, os.Args[4], number(os.Args[6]))
	default:
		panic(os.Args[1])
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	check(err)
	return found
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func say(words ...any) {
	fmt.Println(append([]any{"@"}, words...)...)
}

// how: nothing or "patient"; "default": with the client's own time-out and number of tries.
func send(servers primitive.NamesrvAddr, topic string, count int, pause time.Duration, how []string) {
	options := []producer.Option{
		producer.WithNameServer(servers),
		producer.WithGroupName("producers"),
		producer.WithInstanceName(strconv.FormatInt(time.Now().UnixNano(), 10)),
	}
	if len(how) == 0 || how[0] == "patient" {
		// Its tries walk along the queues, of one broker at first: more of them than a broker has queues.
		options = append(options, producer.WithRetry(4), producer.WithSendMsgTimeout(10*time.Second))
	}
	p, err := rocketmq.NewProducer(options...)
	check(err)
	check(p.Start())
	say("ready")
	for at := 0; at < count; at++ {
		begin := time.Now()
		message := primitive.NewMessage(topic, []byte(strconv.Itoa(at)))
		message.WithTag("tag" + strconv.Itoa(at%2)).WithKeys([]string{"key" + strconv.Itoa(at)})
		result, err := p.SendSync(context.Background(), message)
		if err != nil {
			say("failed", at, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			say("sent", at, result.Status, result.MsgID, time.Since(begin).Milliseconds())
		}
		time.Sleep(time.Until(begin.Add(pause)))
	}
	check(p.Shutdown())
}

func consume(servers primitive.NamesrvAddr, topic string, group string, count int) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(servers),
		consumer.WithGroupName(group),
		consumer.WithInstance(strconv.FormatInt(time.Now().UnixNano(), 10)),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(true),
	)
	check(err)
	var lock sync.Mutex
	seen, changed := map[string]bool{}, time.Now()
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, one := range messages {
			say("got", string(one.Body), one.Queue.QueueId, one.QueueOffset, one.GetTags(), one.ReconsumeTimes, one.MsgId)
			if !seen[string(one.Body)] {
				seen[string(one.Body)], changed = true, time.Now()
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	check(c.Subscribe(topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}, take))
	check(c.Start())
	say("ready")
	for is_over := false; !is_over; time.Sleep(20 * time.Millisecond) {
		lock.Lock()
		is_over = len(seen) >= count || time.Since(changed) > quiet
		lock.Unlock()
	}
	check(c.Shutdown())
}
