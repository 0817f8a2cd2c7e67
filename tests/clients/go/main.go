// The released Go client, told what to do by lines of JSON on stdin (see remote.py).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const await, patience = 1500 * time.Millisecond, 10 * time.Second

type message struct {
	Number            int64             `json:"number,omitempty"`
	Topic             string            `json:"topic,omitempty"`
	MessageId         string            `json:"message_id,omitempty"`
	Body              []byte            `json:"body"`
	Tag               *string           `json:"tag"`
	Keys              *string           `json:"keys,omitempty"`
	MessageGroup      *string           `json:"message_group"`
	DeliveryTimestamp *int64            `json:"delivery_timestamp,omitempty"`
	Priority          *int32            `json:"priority"`
	Properties        map[string]string `json:"properties"`
	DeliveryAttempt   int32             `json:"delivery_attempt,omitempty"`
}

type request struct {
	Id          int64           `json:"id"`
	Do          string          `json:"do"`
	Client      int64           `json:"client"`
	Address     string          `json:"address"`
	Tls         bool            `json:"tls"`
	Account     []string        `json:"account"`
	Namespace   string          `json:"namespace"`
	Topics      []string        `json:"topics"`
	Checks      bool            `json:"checks"`
	Group       string          `json:"group"`
	Topic       string          `json:"topic"`
	Expression  string          `json:"expression"`
	Sql         bool            `json:"sql"`
	Message     json.RawMessage `json:"message"`
	Transaction int64           `json:"transaction"`
	Handle      string          `json:"handle"`
	Most        int32           `json:"most"`
	InvisibleS  int64           `json:"invisible_s"`
	Answer      int64           `json:"answer"`
	Result      json.RawMessage `json:"result"`
}

type driver struct {
	numbers  atomic.Int64
	kept     sync.Map // clients, transactions, messages and questions by number
	speaking sync.Mutex
}

func main() {
	d := &driver{}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return
		}
		r := &request{}
		if err := json.Unmarshal(line, r); err != nil {
			panic(err)
		}
		if r.Answer != 0 {
			question, _ := d.kept.LoadAndDelete(r.Answer)
			question.(chan json.RawMessage) <- r.Result
		} else {
			go d.answer(r)
		}
	}
}

func (d *driver) answer(r *request) {
	ok, err := d.do(r)
	if err != nil {
		d.say(map[string]any{"id": r.Id, "error": fmt.Sprintf("%T", err), "text": err.Error()})
		return
	}
	d.say(map[string]any{"id": r.Id, "ok": ok})
}

func (d *driver) say(line any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	d.speaking.Lock()
	defer d.speaking.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func (d *driver) keep(one any) int64 {
	number := d.numbers.Add(1)
	d.kept.Store(number, one)
	return number
}

func kept[T any](d *driver, number int64) T {
	one, _ := d.kept.Load(number)
	return one.(T)
}

func (d *driver) do(r *request) (any, error) {
	ctx := context.Background()
	switch r.Do {
	case "producer":
		return d.producer(r)
	case "simple":
		return d.simple(r)
	case "push":
		return d.push(r)
	case "send":
		return d.send(ctx, r)
	case "begin":
		return d.keep(kept[rocketmq.Producer](d, r.Client).BeginTransaction()), nil
	case "commit":
		return nil, kept[rocketmq.Transaction](d, r.Transaction).Commit()
	case "rollback":
		return nil, kept[rocketmq.Transaction](d, r.Transaction).RollBack()
	case "recall":
		return kept[rocketmq.Producer](d, r.Client).Recall(ctx, r.Topic, r.Handle)
	case "receive":
		return d.receive(ctx, r)
	case "ack":
		return nil, kept[rocketmq.SimpleConsumer](d, r.Client).Ack(ctx, d.view(r))
	case "change":
		invisible := time.Duration(r.InvisibleS) * time.Second
		return nil, kept[rocketmq.SimpleConsumer](d, r.Client).ChangeInvisibleDuration(d.view(r), invisible)
	case "close":
		return nil, kept[interface{ GracefulStop() error }](d, r.Client).GracefulStop()
	}
	return nil, fmt.Errorf("unknown: %s", r.Do)
}

func (d *driver) view(r *request) *rocketmq.MessageView {
	var number int64
	if err := json.Unmarshal(r.Message, &number); err != nil {
		panic(err)
	}
	return kept[*rocketmq.MessageView](d, number)
}

func configuration(r *request) *rocketmq.Config {
	rocketmq.EnableSsl = r.Tls
	// Without any, the client signs nothing.
	made := &rocketmq.Config{
		Endpoint:      r.Address,
		NameSpace:     r.Namespace,
		ConsumerGroup: r.Group,
		Credentials:   &credentials.SessionCredentials{},
	}
	if len(r.Account) == 2 {
		made.Credentials.AccessKey, made.Credentials.AccessSecret = r.Account[0], r.Account[1]
	}
	return made
}

func subscription(r *request) map[string]*rocketmq.FilterExpression {
	expression := rocketmq.NewFilterExpression(r.Expression)
	if r.Sql {
		expression = rocketmq.NewFilterExpressionWithType(r.Expression, rocketmq.SQL92)
	}
	return map[string]*rocketmq.FilterExpression{r.Topic: expression}
}

// A client whose settings are refused waits for ever for others.
func started(client interface{ Start() error }) error {
	ended := make(chan error, 1)
	go func() { ended <- client.Start() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		return fmt.Errorf("not started after %v", patience)
	}
}

func (d *driver) producer(r *request) (any, error) {
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(r.Topics...)}
	if r.Checks {
		check := func(view *rocketmq.MessageView) rocketmq.TransactionResolution {
			var answer string
			d.ask(r, view, &answer)
			return map[string]rocketmq.TransactionResolution{
				"commit": rocketmq.COMMIT, "rollback": rocketmq.ROLLBACK, "unknown": rocketmq.UNKNOWN,
			}[answer]
		}
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: check}))
	}
	made, err := rocketmq.NewProducer(configuration(r), options...)
	if err != nil {
		return nil, err
	}
	return d.keep(made), started(made)
}

func (d *driver) simple(r *request) (any, error) {
	made, err := rocketmq.NewSimpleConsumer(configuration(r),
		rocketmq.WithSimpleAwaitDuration(await),
		rocketmq.WithSimpleSubscriptionExpressions(subscription(r)))
	if err != nil {
		return nil, err
	}
	return d.keep(made), started(made)
}

func (d *driver) push(r *request) (any, error) {
	consume := func(view *rocketmq.MessageView) rocketmq.ConsumerResult {
		var succeeded bool
		d.ask(r, view, &succeeded)
		if succeeded {
			return rocketmq.SUCCESS
		}
		return rocketmq.FAILURE
	}
	made, err := rocketmq.NewPushConsumer(configuration(r),
		rocketmq.WithPushAwaitDuration(await),
		rocketmq.WithPushSubscriptionExpressions(subscription(r)),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: consume}))
	if err != nil {
		return nil, err
	}
	return d.keep(made), started(made)
}

func (d *driver) send(ctx context.Context, r *request) (any, error) {
	wanted := &message{}
	if err := json.Unmarshal(r.Message, wanted); err != nil {
		return nil, err
	}
	made := &rocketmq.Message{Topic: wanted.Topic, Body: wanted.Body, Tag: wanted.Tag}
	if wanted.Keys != nil {
		made.SetKeys(*wanted.Keys)
	}
	if wanted.MessageGroup != nil {
		made.SetMessageGroup(*wanted.MessageGroup)
	}
	if wanted.DeliveryTimestamp != nil {
		made.SetDelayTimestamp(time.Unix(*wanted.DeliveryTimestamp, 0))
	}
	if wanted.Priority != nil {
		if err := made.SetPriority(*wanted.Priority); err != nil {
			return nil, err
		}
	}
	for key, value := range wanted.Properties {
		made.AddProperty(key, value)
	}
	producer := kept[rocketmq.Producer](d, r.Client)
	var receipts []*rocketmq.SendReceipt
	var err error
	if r.Transaction != 0 {
		receipts, err = producer.SendWithTransaction(ctx, made, kept[rocketmq.Transaction](d, r.Transaction))
	} else {
		receipts, err = producer.Send(ctx, made)
	}
	if err != nil {
		return nil, err
	}
	one := receipts[0]
	return map[string]string{
		"message_id": one.MessageID, "transaction_id": one.TransactionId, "recall_handle": one.RecallHandle,
	}, nil
}

func (d *driver) receive(ctx context.Context, r *request) (any, error) {
	views, err := kept[rocketmq.SimpleConsumer](d, r.Client).Receive(ctx, r.Most, time.Duration(r.InvisibleS)*time.Second)
	if status, ok := rocketmq.AsErrRpcStatus(err); ok && status.Code == 40401 {
		return []message{}, nil // there was none in time
	}
	found := []message{}
	for _, view := range views {
		found = append(found, d.shown(view))
	}
	return found, err
}

func (d *driver) shown(view *rocketmq.MessageView) message {
	return message{
		Number:          d.keep(view),
		MessageId:       view.GetMessageId(),
		Body:            view.GetBody(),
		Tag:             view.GetTag(),
		MessageGroup:    view.GetMessageGroup(),
		Properties:      view.GetProperties(),
		DeliveryAttempt: view.GetDeliveryAttempt(),
	}
}

// What the scenario says of a message: how consuming it ended, or its transaction.
func (d *driver) ask(r *request, view *rocketmq.MessageView, into any) {
	answer := make(chan json.RawMessage, 1)
	d.say(map[string]any{"ask": d.keep(answer), "client": r.Client, "message": d.shown(view)})
	if err := json.Unmarshal(<-answer, into); err != nil {
		panic(err)
	}
}
