// Receive messages through a listener with the released Node.js client of RocketMQ 5.
//
//     npm install rocketmq-client-nodejs
//     node consumer.cjs 127.0.0.1:20911 orders 3
//
// Exits after receiving the given number of messages.
'use strict';

const { PushConsumer, ConsumeResult } = require('rocketmq-client-nodejs');

async function main(endpoints, topic, count) {
  let left = Number(count);
  let done;
  const over = new Promise(resolve => { done = resolve; });
  const consumer = new PushConsumer({
    endpoints,
    namespace: '',
    consumerGroup: 'node-example',
    subscriptions: new Map([[ topic, 'new' ]]),
    messageListener: {
      async consume(message) {
        console.log('received', message.body.toString(), `(attempt ${message.deliveryAttempt})`);
        if (--left === 0) done();
        return ConsumeResult.SUCCESS; // FAILURE: the message is delivered again later
      },
    },
  });
  await consumer.startup();
  await over;
  await consumer.shutdown();
}

main(...process.argv.slice(2)).then(() => process.exit(0));
