// Scenarios with the released Node.js client of RocketMQ 5, in a process of its own.
//
//     NODE_PATH=.../node_modules node node_driver.cjs ADDRESS SCENARIO [OPTIONS AS JSON]
//
// Prints one JSON object of what was seen. HOME is a directory of the test's: the client writes logs there.
'use strict';

const { Producer, SimpleConsumer, PushConsumer, ConsumeResult, FilterExpression } = require('rocketmq-client-nodejs');
const { TransactionResolution, FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const PATIENCE_MS = 30000;
const INVISIBLE_MS = 15000;
const silent = { debug() {}, info() {}, warn() {}, error() {}, close() {} };

class Session {
  constructor(address, options) {
    this.options = options;
    this.common = { endpoints: address, namespace: '', logger: silent, sslEnabled: Boolean(options.tls) };
    if (options.account) {
      const [ accessKey, accessSecret ] = options.account;
      this.common.sessionCredentials = { accessKey, accessSecret };
    }
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
    for (const client of this.clients.reverse()) {
      // It says farewell to each node of its routes, and throws if one of them is dead.
      await client.shutdown().catch(error => console.error(`shutdown: ${error.message}`));
    }
  }
}

// As `take`, while a node is down: each receive goes to the next node, and throws if that is the one.
async function takePatiently(consumer, count) {
  const found = [];
  const end = Date.now() + PATIENCE_MS;
  while (found.length < count && Date.now() < end) {
    const error = await errorOf(async () => {
      const got = await consumer.receive(32, INVISIBLE_MS);
      found.push(...got);
      for (const message of got) await consumer.ack(message);
    });
    if (error) console.error(error);
  }
  return found;
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

const sleep = ms => new Promise(resolve => { setTimeout(resolve, Math.max(0, ms)); });

// What the user sees of whatever the client throws.
async function errorOf(act) {
  try {
    await act();
  } catch (error) {
    return `${error.name}: ${error.message}`.slice(0, 300);
  }
  return '';
}

// Whether the input has ended.
function told() {
  const state = { is_over: false };
  state.seen = new Promise(resolve => { process.stdin.on('end', resolve).resume(); }).then(() => { state.is_over = true; });
  return state;
}

async function refusalOf(act) {
  try {
    await act();
  } catch (error) {
    return error.name;
  }
  return '';
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
    const again = await refusalOf(() => producer.recallMessage(topic, later.recallHandle));
    const consumer = await s.simple('node-delay-g', topic);
    const found = await take(consumer, 1);
    const early = Date.now() < due;
    const then = [ ...await consumer.receive(32, INVISIBLE_MS), ...await consumer.receive(32, INVISIBLE_MS) ];
    return { bodies: bodies(found), early, recalled: recalled.messageId, id: later.messageId, again, then: bodies(then) };
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
      none: bodies(await (await s.simple('node-filter-3', topic, 'd')).receive(32, INVISIBLE_MS)),
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

  // Of two message groups; the second message of each fails twice.
  async fifo_failures(s) {
    const topic = 'node-failures';
    const succeeded = { a: [], b: [] };
    const failures = {};
    const { done, over } = signal();
    const producer = await s.producer(topic);
    for (let i = 0; i < 5; i++) {
      for (const messageGroup of [ 'a', 'b' ]) await producer.send({ topic, messageGroup, body: body(messageGroup + i) });
    }
    await s.push('node-failures-g', topic, async message => {
      const text = message.body.toString();
      if (text.endsWith('1') && (failures[text] || 0) < 2) {
        failures[text] = (failures[text] || 0) + 1;
        return ConsumeResult.FAILURE;
      }
      succeeded[text[0]].push(text);
      if (succeeded.a.length + succeeded.b.length === 10) done();
      return ConsumeResult.SUCCESS;
    });
    await over;
    return { succeeded, failures };
  },

  // A message that came back when its time was over: the handle of the first delivery is worth nothing.
  async expired(s) {
    const topic = 'node-expired';
    await (await s.producer(topic)).send({ topic, body: body('x') });
    const consumer = await s.simple('node-expired-g', topic);
    let first = [];
    while (!first.length) first = await consumer.receive(1, 1000);
    const [ second ] = await take(consumer, 1, false);
    const refused = await refusalOf(() => consumer.ack(first[0]));
    await consumer.ack(second);
    return { attempts: [ first[0].deliveryAttempt, second.deliveryAttempt ], refused };
  },

  // By thirties.
  async many(s) {
    const topic = 'node-many';
    const { count } = s.options;
    const producer = await s.producer(topic);
    const receipts = await Promise.all(Array.from({ length: count }, (_, i) => producer.send({ topic, body: body(i) })));
    const sent = new Set(receipts.map(receipt => receipt.messageId));
    const consumer = await s.simple('node-many-g', topic);
    const received = [];
    let most = 0;
    const end = Date.now() + PATIENCE_MS;
    while (received.length < count && Date.now() < end) {
      const got = await consumer.receive(30, INVISIBLE_MS);
      most = Math.max(most, got.length);
      received.push(...got.map(message => message.messageId));
      await Promise.all(got.map(message => consumer.ack(message)));
    }
    return { sent: sent.size, received: received.length, same: received.every(id => sent.delete(id)) && !sent.size, most };
  },

  async dead_letters(s) {
    const topic = 'node-dead';
    const attempts = [];
    const times = [];
    const sent = await (await s.producer(topic)).send({ topic, body: body('bad') });
    await s.push('node-retries', topic, async message => {
      attempts.push(message.deliveryAttempt);
      times.push(Date.now());
      return ConsumeResult.FAILURE;
    });
    const dead = await take(await s.simple('node-dead-letters', '%DLQ%node-retries'), 1);
    const pause = times[times.length - 1] - times[0];
    return { attempts, pause_ms: pause, dead: bodies(dead), same_id: dead.length === 1 && dead[0].messageId === sent.messageId };
  },

  // Two consumers of one group, and one of another.
  async shared(s) {
    const topic = 'node-shared';
    const producer = await s.producer(topic);
    for (let i = 0; i < 40; i++) await producer.send({ topic, body: body(i) });
    const consumers = [ await s.simple('node-shared-1', topic), await s.simple('node-shared-1', topic) ];
    const got = [ [], [] ];
    const end = Date.now() + PATIENCE_MS;
    while (got[0].length + got[1].length < 40 && Date.now() < end) {
      for (const i of [ 0, 1 ]) {
        for (const message of await consumers[i].receive(4, INVISIBLE_MS)) {
          got[i].push(Number(message.body.toString()));
          await consumers[i].ack(message);
        }
      }
    }
    const other = await take(await s.simple('node-shared-2', topic), 40);
    return {
      each: got.map(mine => new Set(mine).size),
      all: got.flat().sort((a, b) => a - b),
      other: new Set(bodies(other)).size,
    };
  },

  // `max_body` bytes of body and 16 KiB of properties, and one byte more of each.
  // The largest body goes to a topic of its own: the client cannot receive it.
  async limits(s) {
    const topic = 'node-limits';
    const most = s.options.max_body;
    const producer = await s.producer([ topic, 'node-largest' ]);
    const send = (content, value, to = topic) => refusalOf(() => producer.send({
      topic: to, body: content, properties: new Map(value ? [[ 'k', value ]] : []),
    }));
    const made = {
      body: await send(Buffer.alloc(most, 'x'), '', 'node-largest'),
      larger_body: await send(Buffer.alloc(most + 1, 'x'), '', 'node-largest'),
      received_body: await send(Buffer.alloc(s.options.received, 'x')),
      properties: await send(body('p'), 'v'.repeat(16384 - 1)),
      larger_properties: await send(body('p'), 'v'.repeat(16384)),
    };
    const found = await take(await s.simple('node-limits-g', topic), 2);
    const largest = await s.simple('node-largest-g', 'node-largest');
    return {
      ...made,
      largest: await errorOf(() => largest.receive(1, INVISIBLE_MS)),
      bodies: found.map(message => message.body.length).sort((a, b) => a - b),
      values: found.flatMap(message => [ ...message.properties.values() ].map(value => value.length)),
    };
  },

  // Such as the client lets through and the server does not.
  async names(s) {
    const topic = 'node-names';
    const producer = await s.producer(topic);
    return {
      topic: await refusalOf(() => producer.send({ topic: 't'.repeat(128), body: body('x') })),
      message_group: await refusalOf(() => producer.send({ topic, messageGroup: 'g'.repeat(65), body: body('x') })),
      property: await refusalOf(() => producer.send({ topic, properties: new Map([[ 'UNIQ_KEY', 'mine' ]]), body: body('x') })),
      consumer_group: await refusalOf(async () => (await s.simple('g'.repeat(121), topic)).receive(1, INVISIBLE_MS)),
    };
  },

  // A group that comes when the messages have been there for long gets them all.
  async late(s) {
    const topic = 'node-late';
    const producer = await s.producer(topic);
    for (let i = 0; i < 5; i++) await producer.send({ topic, body: body(i) });
    const first = bodies(await take(await s.simple('node-late-1', topic), 5)).sort();
    return { first, second: bodies(await take(await s.simple('node-late-2', topic), 5)).sort() };
  },

  // The same names in two namespaces are two topics and two groups.
  async namespaces(s) {
    const topic = 'node-space';
    const found = {};
    for (const namespace of [ 'one', 'two' ]) {
      s.common.namespace = namespace;
      await (await s.producer(topic)).send({ topic, body: body(namespace) });
    }
    for (const namespace of [ 'one', 'two' ]) {
      s.common.namespace = namespace;
      const consumer = await s.simple('node-space-g', topic);
      const first = await take(consumer, 1);
      found[namespace] = bodies([ ...first, ...await consumer.receive(32, INVISIBLE_MS) ]);
    }
    return found;
  },

  // What becomes of a send to `topic`, and of a receive of `group` from it.
  async calls(s) {
    const { topic, group } = s.options;
    return {
      send: await errorOf(async () => (await s.producer(topic)).send({ topic, body: body('x') })),
      receive: await errorOf(async () => (await s.simple(group, topic)).receive(1, INVISIBLE_MS)),
    };
  },

  // -- under faults: "begun" is printed when they have begun, and they go on until the input ends

  // 50 messages a second; then everything is read.
  async steady(s) {
    const topic = 'node-steady';
    const consumer = await s.simple('node-steady-g', topic);
    const producer = await s.producer(topic);
    const over = told();
    const missing = new Set();
    const failed = [];
    const begin = Date.now();
    let last = '';
    for (let i = 0; !over.is_over; i++) {
      await sleep(begin + i * 20 - Date.now());
      last = await errorOf(async () => missing.add((await producer.send({ topic, body: body(i) })).messageId));
      if (last) failed.push(`${i}: ${last}`);
      if (i === 0) console.log('begun');
    }
    const sent = missing.size;
    const end = Date.now() + PATIENCE_MS;
    while (missing.size && Date.now() < end) {
      const error = await errorOf(async () => {
        for (const message of await consumer.receive(32, INVISIBLE_MS)) missing.delete(message.messageId);
      });
      if (error) console.error(`receive: ${error}`);
    }
    return { sent, failed, lost: [ ...missing ].sort(), last };
  },

  // Messages of three groups in turn, and a push consumer that gets each group in order.
  async ordered(s) {
    const topic = 'node-ordered';
    const producer = await s.producer(topic);
    const over = told();
    const acknowledged = { a: [], b: [], c: [] };
    const consumed = { a: [], b: [], c: [] };
    await s.push('node-ordered-g', topic, async message => {
      consumed[message.properties.get('__SHARDINGKEY')].push(Number(message.body.toString()));
      return ConsumeResult.SUCCESS;
    });
    for (let i = 0; !over.is_over; i++) {
      await sleep(20);
      const messageGroup = 'abc'[i % 3];
      if (!await errorOf(() => producer.send({ topic, messageGroup, body: body(i) }))) acknowledged[messageGroup].push(i);
      if (consumed.a.length && i % 10 === 0) console.log('begun');
    }
    const end = Date.now() + PATIENCE_MS;
    const isMissing = group => acknowledged[group].some(number => !consumed[group].includes(number));
    while ([ 'a', 'b', 'c' ].some(isMissing) && Date.now() < end) await sleep(100);
    return { acknowledged, consumed };
  },

  // How often a consumer in order tries a message that it fails at, sent when the input has ended.
  async retried(s) {
    const topic = 'node-retried';
    const producer = await s.producer(topic);
    const over = told();
    const begun = signal();
    let tries = 0;
    await s.push('node-retried-g', topic, async message => {
      begun.done();
      if (message.body.toString() !== 'bad') return ConsumeResult.SUCCESS;
      tries++;
      return ConsumeResult.FAILURE;
    });
    await producer.send({ topic, messageGroup: 'one', body: body('good') });
    await begun.over;
    console.log('begun');
    await over.seen;
    await producer.send({ topic, messageGroup: 'one', body: body('bad') });
    const dead = await take(await s.simple('node-retried-dead', '%DLQ%node-retried-g'), 1);
    return { tries, dead: bodies(dead) };
  },

  // A transaction that nobody ends; its checker knows nothing before the input ends.
  async orphan(s) {
    const topic = 'node-orphan';
    const over = told();
    const answers = [];
    const checker = {
      async check() {
        answers.push(over.is_over ? 'commit' : 'unknown');
        return over.is_over ? TransactionResolution.COMMIT : TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED;
      },
    };
    const producer = await s.producer(topic, { checker });
    await producer.send({ topic, body: body('orphan') }, producer.beginTransaction());
    console.log('begun');
    await over.seen;
    const found = await takePatiently(await s.simple('node-orphan-g', topic), 1);
    return { bodies: bodies(found), answer: answers[answers.length - 1] };
  },

  // What is held when the streams of telemetry are cut is held afterwards: a message that is consumed until
  // `seconds` after the end of the input, and one that waits so long for its acknowledgement.
  async held(s) {
    const topic = 'node-held';
    const ms = s.options.seconds * 1000;
    const over = told();
    const begun = signal();
    const attempts = [];
    let isDone = false;
    const producer = await s.producer(topic);
    await producer.send({ topic, body: body('long') });
    const consumer = await s.simple('node-held-simple', topic);
    const mine = await consumer.receive(1, INVISIBLE_MS + 2 * ms + 60000);
    await s.push('node-held-push', topic, async message => {
      attempts.push(message.deliveryAttempt);
      begun.done();
      await over.seen;
      await sleep(ms);
      isDone = true;
      return ConsumeResult.SUCCESS;
    });
    await begun.over;
    console.log('begun');
    await over.seen;
    const refused = [];
    let number = 0;
    for (; !isDone; number++) {
      await sleep(ms / 75);
      refused.push(await errorOf(() => producer.send({ topic: 'node-held-2', body: body(number) })));
    }
    const acks = await Promise.all(mine.map(message => errorOf(() => consumer.ack(message))));
    const other = await take(await s.simple('node-held-2-g', 'node-held-2'), number);
    return { attempts, acks, refused: refused.filter(Boolean), other: number - other.length };
  },
};

async function main() {
  const [ address, name, options ] = process.argv.slice(2);
  const session = new Session(address, JSON.parse(options || '{}'));
  try {
    console.log(JSON.stringify(await scenarios[name](session)));
  } finally {
    await session.close();
  }
  process.exit(0);
}

main();
