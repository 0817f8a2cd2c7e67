'use strict';

// Stands for the released client, as far as the driver uses it: answers without any server.
const { SystemProperties } = require('./proto/apache/rocketmq/v2/definition_pb');

class RefusedException extends Error {
  code = 40002;
}

class Client {
  async startup() {}
  async shutdown() {}
}

exports.Producer = class Producer extends Client {
  async send({ body }) {
    if (body.toString() === 'refuse') throw new RefusedException('no such topic');
    return { offset: body.length, messageId: 'id' };
  }
};

exports.SimpleConsumer = class SimpleConsumer extends Client {
  async receive(most) {
    const one = () => ({
      receiptHandle: new SystemProperties().getReceiptHandle(),
      topic: 't',
      keys: [],
      deliveryAttempt: 2,
      body: Buffer.from('5 \xff', 'latin1'),
    });
    return Array.from({ length: most }, one);
  }

  async ack() {}

  async changeInvisibleDuration(message, ms) {
    throw new RefusedException(`not ${ms}`);
  }
};
