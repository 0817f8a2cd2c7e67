'use strict';

// Stands for the generated module of the released client, as far as the driver uses it.
let handles = 0;

exports.SystemProperties = class SystemProperties {
  getReceiptHandle() { return `handle ${handles++}`; }
  getQueueId() { return 3; }
  getQueueOffset() { return 70; }
};

exports.Code = { OK: 20000 };
exports.TransactionResolution = { COMMIT: 1, ROLLBACK: 2 };
exports.TransactionSource = { SOURCE_CLIENT: 1, SOURCE_SERVER_CHECK: 2 };
