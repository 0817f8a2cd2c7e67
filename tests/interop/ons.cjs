// What an application does with the npm package ali-ons, by its first argument. It says the same lines as
// Client.java. NODE_PATH has the package.
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const QUIET_MS = 75000; // longer than between two looks at the routes (30 s)
const silent = { info() {}, warn() {}, debug() {}, error: text => process.stderr.write(`${text}\n`) };
const httpclient = { request: async () => ({ status: 404 }) }; // of a service for addresses that we do not use

const say = (...words) => process.stdout.write(`@ ${words.join(' ')}\n`);
const sleep = ms => new Promise(resolve => setTimeout(resolve, Math.max(0, ms)));

async function send(nameSrv, topic, count, pause) {
  const producer = new Producer({ httpclient, logger: silent, nameSrv, producerGroup: 'producers', sendMsgTimeout: 10000 });
  producer.on('error', error => process.stderr.write(`${error}\n`));
  await producer.ready();
  say('ready');
  for (let number = 0; number < count; number++) {
    const begin = Date.now();
    try {
      const message = new Message(topic, `tag${number % 2}`, String(number));
      message.keys = [ `key${number}` ];
      const result = await producer.send(message);
      say('sent', number, result.sendStatus, result.msgId, Date.now() - begin);
    } catch (error) {
      say('failed', number, String(error).replace(/\n/g, ' '));
    }
    await sleep(begin + Number(pause) - Date.now());
  }
}

async function consume(nameSrv, topic, group, count) {
  const seen = new Set();
  let changed = Date.now();
  const consumer = new Consumer({
    httpclient, logger: silent, nameSrv, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', error => process.stderr.write(`${error}\n`));
  consumer.subscribe(topic, '*', async message => {
    const body = message.body.toString();
    say('got', body, message.queueId, message.queueOffset, message.tags, message.reconsumeTimes, message.msgId);
    if (!seen.has(body)) {
      seen.add(body);
      changed = Date.now();
    }
  });
  await consumer.ready();
  say('ready');
  while (seen.size < count && Date.now() - changed < QUIET_MS) {
    await sleep(20);
  }
}

const [ kind, nameSrv, topic, ...rest ] = process.argv.slice(2);
const done = kind === 'send' ? send(nameSrv, topic, ...rest) : consume(nameSrv, topic, rest[0], Number(rest[2]));
// Not before all that was said has gone through the pipe.
done.then(() => process.stdout.write('', () => process.exit(0)), error => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
