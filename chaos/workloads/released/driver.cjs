// One released Node.js client of RocketMQ 5, driven over its standard input and output, as driver.py drives the
// Python client:
//
//     NODE_PATH=.../node_modules node driver.cjs ADDRESS
'use strict';

const readline = require('node:readline');
const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { SystemProperties } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const MAX_TEXT = 500;
const silent = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const places = new Map(); // by receipt handle: where a message stands, which the client reads and drops
const plainHandle = SystemProperties.prototype.getReceiptHandle;

SystemProperties.prototype.getReceiptHandle = function getReceiptHandle() {
  const handle = plainHandle.call(this);
  places.set(handle, [ this.getQueueId(), this.getQueueOffset() ]);
  return handle;
};

// The client of this process: one at a time, which may be closed and followed by another one.
class Driver {
  constructor(endpoints) {
    this.common = { endpoints, namespace: '', logger: silent };
    this.client = null;
    this.held = new Map(); // what was received, until it is done with
    this.handles = 0;
  }

  async producer({ topics }) {
    return this.start(new Producer({ ...this.common, topic: topics }));
  }

  async consumer({ group, topics, filter, wait_s: waitS }) {
    const subscriptions = new Map(topics.map(topic => [ topic, filter ]));
    const awaitDuration = waitS * 1000;
    return this.start(new SimpleConsumer({ ...this.common, consumerGroup: group, subscriptions, awaitDuration }));
  }

  async send({ topic, body, tag, key, message_group: messageGroup }) {
    const message = { topic, tag, keys: [ key ], body: Buffer.from(body, 'base64') };
    if (messageGroup) message.messageGroup = messageGroup;
    const receipt = await this.client.send(message);
    return { offset: receipt.offset, message_id: receipt.messageId };
  }

  async receive({ most, invisible_s: invisibleS }) {
    const messages = await this.client.receive(most, invisibleS * 1000);
    return { messages: messages.map(message => this.told(message)) };
  }

  async ack({ handle }) {
    await this.client.ack(this.taken(handle));
    return {};
  }

  async change({ handle, invisible_s: invisibleS }) {
    await this.client.changeInvisibleDuration(this.held.get(handle), invisibleS * 1000);
    return {};
  }

  async forget({ handle }) {
    this.taken(handle);
    return {};
  }

  async close() {
    const { client } = this;
    this.client = null;
    this.held.clear();
    if (client) await client.shutdown();
    return {};
  }

  async start(client) {
    await client.startup();
    this.client = client;
    return {};
  }

  taken(handle) {
    const message = this.held.get(handle);
    this.held.delete(handle);
    return message;
  }

  told(message) {
    const handle = this.handles++;
    const [ q, qoff ] = places.get(message.receiptHandle);
    places.delete(message.receiptHandle);
    this.held.set(handle, message);
    return {
      handle,
      topic: message.topic,
      q,
      qoff,
      attempt: message.deliveryAttempt,
      tag: message.tag ?? '',
      keys: [ ...message.keys ].sort().join(' '),
      body: message.body.toString('base64'),
    };
  }
}

const errorOf = error => ({
  type: error?.constructor?.name ?? typeof error,
  code: Number.isInteger(error?.code) ? error.code : 0,
  text: String(error?.message ?? error).slice(0, MAX_TEXT),
});

const driver = new Driver(process.argv[2]);
const tell = answer => process.stdout.write(`${JSON.stringify(answer)}\n`);
const requests = readline.createInterface({ input: process.stdin });

requests.on('line', async line => {
  const { id, do: name, ...fields } = JSON.parse(line);
  try {
    tell({ id, ok: await driver[name](fields) });
  } catch (error) { // whatever the client throws is what its user sees
    tell({ id, error: errorOf(error) });
  }
});
requests.on('close', () => process.exit(0));
tell({ ready: true });
