'use strict';

// Stands for the released client, as far as the driver uses it: answers without any server. As the fake client for
// Python: half messages are asked about at once, a push consumer has two messages, repeats what fails, and is refused
// its second ack.
const { Code, SystemProperties, TransactionResolution, TransactionSource } = require('./proto/apache/rocketmq/v2/definition_pb');

class RefusedException extends Error {
  code = 40002;
}

class Client {
  async startup() {}
  async shutdown() {}
}

exports.ConsumeResult = { SUCCESS: 'SUCCESS', FAILURE: 'FAILURE' };

exports.Producer = class Producer extends Client {
  constructor({ checker }) {
    super();
    this.checker = checker;
  }

  beginTransaction() {
    return {
      async commit() {},
      async rollback() {
        throw new RefusedException('no such transaction');
      },
    };
  }

  async endTransaction(endpoints, message, messageId, transactionId, resolution) {
    if (resolution !== TransactionResolution.COMMIT) throw new RefusedException('rolled back before');
  }

  async check(message) {
    const resolution = await this.checker.check(message);
    await this.endTransaction('there', message, 'id', 'tx', resolution, TransactionSource.SOURCE_SERVER_CHECK)
      .catch(() => {});
  }

  async recallMessage(topic, handle) {
    if (handle !== 'handle of 1700000000000') throw new RefusedException(handle);
  }

  async send({ body, deliveryTimestamp }, transaction) {
    if (transaction) this.check({ body });
    if (body.toString() === 'refuse') throw new RefusedException('no such topic');
    return { offset: body.length, messageId: 'id', recallHandle: `handle of ${deliveryTimestamp?.getTime()}` };
  }
};

const received = () => ({
  receiptHandle: new SystemProperties().getReceiptHandle(),
  topic: 't',
  keys: [],
  deliveryAttempt: 2,
  body: Buffer.from('5 \xff', 'latin1'),
});

exports.PushConsumer = class PushConsumer extends Client {
  constructor({ messageListener }) {
    super();
    this.listener = messageListener;
    this.acks = 0;
  }

  async startup() {
    this.consume();
  }

  async consume() {
    for (let number = 0; number < 2; number++) {
      const message = received();
      while (await this.listener.consume(message) !== exports.ConsumeResult.SUCCESS) message.deliveryAttempt++;
      const request = { getEntriesList: () => [{ getReceiptHandle: () => message.receiptHandle }] };
      await this.ackMessageViaRpc('there', request, 1000);
    }
  }

  async ackMessageViaRpc() {
    const status = ++this.acks === 2 ? { code: 40002, message: 'no such handle' } : { code: Code.OK };
    return { getStatus: () => ({ toObject: () => status }) };
  }
};

exports.SimpleConsumer = class SimpleConsumer extends Client {
  async receive(most) {
    return Array.from({ length: most }, received);
  }

  async ack() {}

  async changeInvisibleDuration(message, ms) {
    throw new RefusedException(`not ${ms}`);
  }
};
