// Scenarios with the released Node.js client of RocketMQ 5, in a process of its own.
//
//     NODE_PATH=.../node_modules node node_driver.cjs ADDRESS SCENARIO
//
// Prints one JSON object of what was seen. HOME is a directory of the test's: the client writes logs there.
'use strict';

const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const { TransactionResolution, FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const PATIENCE_MS = 30000;
const INVISIBLE_MS = 15000;
const silent = { debug() {}, info() {}, warn() {}, error() {}, close() {} };

class Session {
  constructor(address) {
    this.common = { endpoints: address, namespace: '', logger: silent };
    this.clients = [];
  }

  producer(topic, more = {}) {
    return this.started(new Producer({ ...this.common, topic, ...more }));
  }

  simple(consumerGroup, topic, expression = '*') {
    const subscriptions = new Map().set(topic, expression);
    return this.started(new SimpleConsumer({ ...this.common, consumerGroup, subscriptions, awaitDuration: 1500 }));
  }

  push(consumerGroup, topic, consume) {
    const subscriptions = new Map().set(topic, '*');
    return this.started(new PushConsumer({ ...this.common, consumerGroup, subscriptions, messageListener: { consume } }));
  }

  async started(client) {
    await client.startup();
    this.clients.push(client);
    return client;
  }

  async close() {
    for (const client of this.clients.reverse()) await client.shutdown();
  }
}

async function take(consumer, count, ack = true) {
  const found = [];
  const end = Date.now() + PATIENCE_MS;
  while (found.length < count && Date.now() < end) {
    for (const message of await consumer.receive(32, INVISIBLE_MS)) {
      found.push(message);
      if (ack) await consumer.ack(message);
    }
  }
  return found;
}

const bodies = messages => messages.map(message => message.body.toString());
const body = text => Buffer.from(String(text));

// A promise, and what settles it; it is given up after a while.
function signal() {
  let done;
  const seen = new Promise(resolve => { done = resolve; });
  const late = new Promise(resolve => { setTimeout(resolve, PATIENCE_MS).unref(); });
  return { done, over: Promise.race([ seen, late ]) };
}

const scenarios = {
  async normal(s) {
    const topic = 'node-normal';
    const producer = await s.producer(topic);
    const receipts = [];
    for (let i = 0; i < 20; i++) {
      const properties = new Map([[ 'n', String(i) ]]);
      receipts.push(await producer.send({ topic, tag: 'a', keys: [ 'k1' ], properties, body: body(i) }));
    }
    const found = await take(await s.simple('node-normal-g', topic), 20);
    return {
      sent: receipts.map(receipt => receipt.messageId).sort(),
      received: found.map(message => message.messageId).sort(),
      same_ids: receipts.every(receipt => receipt.messageId === receipt.transactionId),
      corrupted: found.filter(message => message.corrupted).length,
      tags: [ ...new Set(found.map(message => message.tag)) ],
      properties: found.map(message => Number(message.properties.get('n'))).sort((a, b) => a - b),
    };
  },

  async fifo(s) {
    const topic = 'node-fifo';
    const producer = await s.producer(topic);
    for (let i = 0; i < 10; i++) await producer.send({ topic, messageGroup: 'one', body: body(i) });
    const found = await take(await s.simple('node-fifo-g', topic), 10);
    return { bodies: bodies(found), group: [ ...new Set(found.map(m => m.properties.get('__SHARDINGKEY'))) ] };
  },

  async delay(s) {
    const topic = 'node-delay';
    const producer = await s.producer(topic);
    const due = Date.now() + 2000;
    await producer.send({ topic, deliveryTimestamp: new Date(due), body: body('late') });
    const later = await producer.send({ topic, delay: 4000, body: body('never') });
    const recalled = await producer.recallMessage(topic, later.recallHandle);
    const consumer = await s.simple('node-delay-g', topic);
    const found = await take(consumer, 1);
    return { bodies: bodies(found), early: Date.now() < due, recalled: recalled.messageId, id: later.messageId };
  },

  // Three topics: such a client waits for settings that may come before it listens.
  async transaction(s) {
    const topic = 'node-tx';
    const checked = [];
    const checker = {
      async check(message) {
        checked.push(message.body.toString());
        return TransactionResolution.COMMIT;
      },
    };
    const producer = await s.producer([ topic, 'node-tx-2', 'node-tx-3' ], { checker });
    for (const name of [ 'commit', 'rollback', 'orphan' ]) {
      const begun = producer.beginTransaction();
      await producer.send({ topic, body: body(name) }, begun);
      if (name !== 'orphan') await begun[name]();
    }
    const found = await take(await s.simple('node-tx-g', topic), 2);
    const withId = found.every(message => message.properties.get('__transactionId__'));
    return { bodies: bodies(found).sort(), checked, with_id: withId };
  },

  async priority(s) {
    const topic = 'node-priority';
    await (await s.producer(topic)).send({ topic, priority: 3, body: body('first') });
    const found = await take(await s.simple('node-priority-g', topic), 1);
    return { bodies: bodies(found), priority: found.map(message => message.priority) };
  },

  async filters(s) {
    const topic = 'node-filter';
    const producer = await s.producer(topic);
    for (const tag of [ 'a', 'b', 'c' ]) {
      const properties = new Map([[ 'n', String(tag.charCodeAt(0)) ]]);
      await producer.send({ topic, tag, properties, body: body(tag) });
    }
    const sql = new FilterExpression("n > 97 AND TAGS <> 'c'", FilterType.SQL);
    return {
      tags: bodies(await take(await s.simple('node-filter-1', topic, 'a || c'), 2)).sort(),
      sql: bodies(await take(await s.simple('node-filter-2', topic, sql), 1)),
    };
  },

  async handles(s) {
    const topic = 'node-handle';
    await (await s.producer(topic)).send({ topic, body: body('x') });
    const consumer = await s.simple('node-handle-g', topic);
    const [ first ] = await take(consumer, 1, false);
    const old = first.receiptHandle;
    const changed = await consumer.changeInvisibleDuration(first, 2000);
    let refused = '';
    try {
      await consumer.ack(Object.assign(Object.create(first), { receiptHandle: old }));
    } catch (error) {
      refused = error.name;
    }
    const [ second ] = await take(consumer, 1);
    return { changed: changed !== old, refused, attempts: second.deliveryAttempt };
  },

  async push(s) {
    const topic = 'node-push';
    const seen = [];
    const { done, over } = signal();
    const producer = await s.producer(topic);
    for (let i = 0; i < 3; i++) await producer.send({ topic, body: body(i) });
    await s.push('node-push-g', topic, async message => {
      const text = message.body.toString();
      seen.push([ text, message.deliveryAttempt ]);
      if (seen.length === 4) done();
      return text === '1' && message.deliveryAttempt === 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    });
    await over;
    return { seen: seen.sort() };
  },

  async push_fifo(s) {
    const topic = 'node-push-fifo';
    const seen = [];
    const { done, over } = signal();
    const producer = await s.producer(topic);
    for (let i = 0; i < 3; i++) await producer.send({ topic, messageGroup: 'one', body: body(i) });
    await s.push('node-orderly', topic, async message => {
      const text = message.body.toString();
      seen.push(text);
      if (text === '2') done();
      return text === '0' ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    });
    await over;
    const dead = await take(await s.simple('node-dead-g', '%DLQ%node-orderly'), 1);
    return { seen, dead: bodies(dead) };
  },
};

async function main() {
  const [ address, name ] = process.argv.slice(2);
  const session = new Session(address);
  try {
    console.log(JSON.stringify(await scenarios[name](session)));
  } finally {
    await session.close();
  }
  process.exit(0);
}

main();
