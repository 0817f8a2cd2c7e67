// One released Node.js client of RocketMQ 5, driven over standard input and output, like driver.py:
//
//     NODE_PATH=.../node_modules node driver.cjs ADDRESS
'use strict';

const readline = require('node:readline');
const { Producer, PushConsumer, SimpleConsumer, ConsumeResult } = require('rocketmq-client-nodejs');
const {
  Code, SystemProperties, TransactionResolution, TransactionSource,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const MAX_TEXT = 500;
const silent = { debug() {}, info() {}, warn() {}, error() {}, close() {} };
const places = new Map(); // receipt handle -> queue id and offset, which the client discards, and the time
const nowNs = () => Number(process.hrtime.bigint());
const plainHandle = SystemProperties.prototype.getReceiptHandle;

SystemProperties.prototype.getReceiptHandle = function getReceiptHandle() {
  const handle = plainHandle.call(this);
  places.set(handle, [ this.getQueueId(), this.getQueueOffset(), nowNs() ]);
  return handle;
};

// A queue of messages that wait for the harness.
class Handover {
  constructor() {
    this.waiting = [];
    this.arrived = () => {};
  }

  put(one) {
    this.waiting.push(one);
    this.arrived();
  }

  // Returns up to `most` messages; none if none arrives within `waitS` seconds.
  async some(most, waitS) {
    if (!this.waiting.length) {
      await new Promise(resolve => {
        const timer = setTimeout(resolve, waitS * 1000);
        this.arrived = () => { clearTimeout(timer); resolve(); };
      });
    }
    return this.waiting.splice(0, most);
  }
}

// A promise with its resolve and reject functions.
function outcome() {
  const made = {};
  made.over = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  made.over.catch(() => {}); // no unhandled rejection if nothing awaits it
  return made;
}

// Reports the server's answer to the first ack of a message. The client repeats acks itself.
class AckReportingPushConsumer extends PushConsumer {
  constructor(options, acked) {
    super(options);
    this.acked = acked;
  }

  async ackMessageViaRpc(endpoints, request, timeout) {
    const handle = request.getEntriesList()[0].getReceiptHandle();
    const ack = this.acked.get(handle);
    this.acked.delete(handle);
    try {
      const response = await super.ackMessageViaRpc(endpoints, request, timeout);
      const status = response.getStatus().toObject();
      if (status.code === Code.OK) ack?.resolve();
      else ack?.reject(Object.assign(new Error(status.message), { code: status.code }));
      return response;
    } catch (error) {
      ack?.reject(error);
      throw error;
    }
  }
}

// Reports the server's answer when a checked transaction ends, which the client only logs.
class EndReportingProducer extends Producer {
  constructor(options, ended) {
    super(options);
    this.ended = ended;
  }

  async endTransaction(endpoints, message, messageId, transactionId, resolution, source) {
    const end = source === TransactionSource.SOURCE_SERVER_CHECK ? this.ended.get(message) : undefined;
    try {
      await super.endTransaction(endpoints, message, messageId, transactionId, resolution, source);
      end?.resolve();
    } catch (error) {
      end?.reject(error);
      throw error;
    }
  }
}

// Runs the client of this process. At most one is open; a closed client may be followed by another.
class Driver {
  constructor(endpoints) {
    this.common = { endpoints, namespace: '', logger: silent };
    this.client = null;
    this.held = new Map(); // messages and transactions in use
    this.handles = 0;
    this.handover = new Handover();
    this.checked = new Handover();
  }

  async producer({ topics }) {
    const ended = new WeakMap();
    const check = async message => {
      const [ decided, end ] = [ outcome(), outcome() ];
      ended.set(message, end);
      this.checked.put({ message, decided, end });
      return await decided.over ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    };
    return this.start(new EndReportingProducer({ ...this.common, topic: topics, checker: { check } }, ended));
  }

  async push({ group, topics, filter }) {
    const subscriptions = new Map(topics.map(topic => [ topic, filter ]));
    const acked = new Map();
    const handover = new Handover();
    const consume = async message => {
      const [ done, ack ] = [ outcome(), outcome() ];
      if (message.place) message.place[2] = nowNs(); // in a FIFO group the client retries by itself
      acked.set(message.receiptHandle, ack);
      handover.put({ message, done, ack });
      return await done.over ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    };
    this.handover = handover;
    const options = { ...this.common, consumerGroup: group, subscriptions, messageListener: { consume } };
    return this.start(new AckReportingPushConsumer(options, acked));
  }

  async consumer({ group, topics, filter, wait_s: waitS }) {
    const subscriptions = new Map(topics.map(topic => [ topic, filter ]));
    const awaitDuration = waitS * 1000;
    return this.start(new SimpleConsumer({ ...this.common, consumerGroup: group, subscriptions, awaitDuration }));
  }

  // due_ms: Unix time in ms; 0 or absent: no delay.
  async send({ message_group: messageGroup, due_ms: dueMs, ...about }) {
    const message = messageOf(about);
    if (messageGroup) message.messageGroup = messageGroup;
    if (dueMs) message.deliveryTimestamp = new Date(dueMs);
    const receipt = await this.client.send(message);
    const told = { offset: receipt.offset, message_id: receipt.messageId };
    return dueMs ? { ...told, recall_handle: receipt.recallHandle } : told;
  }

  async recall({ topic, recall_handle: recallHandle }) {
    await this.client.recallMessage(topic, recallHandle);
    return {};
  }

  // Sends a half message in its own transaction.
  async half(about) {
    const transaction = this.client.beginTransaction();
    await this.client.send(messageOf(about), transaction);
    return { handle: this.hold(transaction) };
  }

  async end({ handle, commit }) {
    const transaction = this.taken(handle);
    await (commit ? transaction.commit() : transaction.rollback());
    return {};
  }

  // Returns half messages that the server has checked.
  async checks({ wait_s: waitS }) {
    const asked = await this.checked.some(1, waitS);
    const told = one => ({ handle: this.hold(one), body: one.message.body.toString('base64') });
    return { messages: asked.map(told) };
  }

  // Decides the outcome of a checked half message.
  async decide({ handle, commit }) {
    const { decided, end } = this.taken(handle);
    decided.resolve(commit);
    await end.over;
    return {};
  }

  // Returns messages that the push consumer received.
  async take({ most, wait_s: waitS }) {
    const handed = await this.handover.some(most, waitS);
    return { messages: handed.map(one => this.told(one.message, one)) };
  }

  // Settles a message of the push consumer. If it is done, waits for the response to the client's first ack.
  async settle({ handle, is_done: isDone }) {
    const { done, ack } = this.taken(handle);
    done.resolve(isDone);
    if (isDone) await ack.over;
    return {};
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
    if (client) await client.shutdown(); // meanwhile the harness settles the messages of a push consumer
    this.held.clear();
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

  hold(what) {
    const handle = this.handles++;
    this.held.set(handle, what);
    return handle;
  }

  // `held`: the message or transaction of the handle.
  told(message, held = message) {
    message.place ??= places.get(message.receiptHandle);
    places.delete(message.receiptHandle);
    const [ q, qoff, receivedNs ] = message.place;
    return {
      handle: this.hold(held),
      topic: message.topic,
      q,
      qoff,
      attempt: message.deliveryAttempt,
      tag: message.tag ?? '',
      keys: [ ...message.keys ].sort().join(' '),
      body: message.body.toString('base64'),
      received_ns: receivedNs,
    };
  }
}

function messageOf({ topic, body, tag, key }) {
  return { topic, tag, keys: [ key ], body: Buffer.from(body, 'base64') };
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
  } catch (error) { // users of the client would see this exception
    tell({ id, error: errorOf(error) });
  }
});
requests.on('close', () => process.exit(0));
tell({ ready: true });
