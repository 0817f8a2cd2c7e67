// Send a few messages with the released Node.js client of RocketMQ 5.
//
//     npm install rocketmq-client-nodejs
//     node producer.cjs 127.0.0.1:20911 orders
//
// Pass the address of any node of `dledger cluster up --broker`. The topic is created automatically.
'use strict';

const { Producer } = require('rocketmq-client-nodejs');

async function main(endpoints, topic) {
  const producer = new Producer({ endpoints, namespace: '', topic });
  await producer.startup();
  for (let number = 0; number < 3; number++) {
    const receipt = await producer.send({
      topic,
      tag: 'new', // consumers may filter by it
      keys: [ `order-${number}` ],
      body: Buffer.from(`order ${number} from Node.js`),
    });
    // Returns when a majority of the nodes has the message on disk.
    console.log('sent', receipt.messageId);
  }
  await producer.shutdown();
}

main(...process.argv.slice(2)).then(() => process.exit(0));
