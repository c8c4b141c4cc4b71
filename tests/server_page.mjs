// The page in headless Chromium: node server_page.mjs URL CHROMIUM FOLDER. A conversation with thinking, edit, branches
// and stop; axe-core on both colour schemes and on the width of a phone; screenshots into FOLDER.
import assert from 'node:assert/strict';
import {createRequire} from 'node:module';
import puppeteer from 'puppeteer-core';

const [url, executablePath, folder] = process.argv.slice(2);
const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const browser = await puppeteer.launch({executablePath, args: ['--no-sandbox'], headless: true});
const page = await browser.newPage();
page.setDefaultTimeout(20000);
await page.setBypassCSP(true);  // for axe, which is added to the page
const problems = [];
page.on('pageerror', e => problems.push(String(e)));
page.on('console', m => { if (m.type() === 'error') problems.push(m.text()); });

const texts = () => page.$$eval('#messages li', all => all.map(e => [e.className, e.innerText]));
const idle = () => page.waitForFunction(() => document.getElementById('stop').disabled);
const press = async (label, within = '') => {
  await page.waitForSelector(`${within} button[aria-label="${label}"]:not(:disabled)`);
  await page.click(`${within} button[aria-label="${label}"]`);
};
async function say(text) {
  await page.type('#say', text);
  await page.keyboard.press('Enter');
  await idle();
}
async function shot(name) {
  await page.screenshot({path: `${folder}/${name}.png`, fullPage: true});
  await page.addScriptTag({path: axe});
  const found = await page.evaluate(async () => (await axe.run()).violations.map(v => `${v.impact} ${v.id}: ${v.help}`));
  assert.deepEqual(found, [], name);
}

try {
  await page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: 'light'}]);
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById('model').textContent !== '-');
  await shot('empty');
  assert.equal(await page.$eval(':focus', e => e.id), 'say');  // keyboard: ready to write

  await say('plain');
  let all = await texts();
  assert.deepEqual(all.map(m => m[0]), ['user', 'assistant']);
  assert.match(all[1][1], /Hello, world\./);
  assert.ok(!/Short thought/.test(all[1][1]), 'thinking is closed');
  await page.click('#messages details summary');
  assert.match((await texts())[1][1], /Short thought\./);
  assert.match(await page.$eval('#rate', e => e.textContent), /^\d/);
  assert.match(await page.$eval('#why', e => e.textContent), /rows/);

  await say('more');
  assert.match((await texts())[3][1], /Rows\n\u2022 bold, code and 2 \* 3 \* 4\n\nA table:\nfor row in rows:\n    print/);
  await press('Edit message 3');
  await page.waitForSelector('textarea[aria-label="Edited message"]');
  await page.keyboard.down('Control');
  await page.keyboard.press('a');
  await page.keyboard.up('Control');
  await page.keyboard.type('plain again');
  await press('Send the edited message');
  await idle();
  all = await texts();
  assert.match(all[2][1], /2 of 2[\s\S]*plain again/);
  assert.match(all[3][1], /Hello, world\./);
  await press('Earlier version of message 3');
  assert.match((await texts())[3][1], /A table/);
  await shot('light');

  await page.setViewport({width: 1280, height: 800});
  await shot('wide');
  await page.emulateMediaFeatures([{name: 'prefers-color-scheme', value: 'dark'}]);
  await shot('dark');
  await page.setViewport({width: 360, height: 740});
  assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'wider than a phone');
  await shot('phone');

  await page.click('#clear');
  await page.type('#say', 'endless');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelectorAll('#messages li')[1]?.innerText.length > 60);
  assert.match(await page.$eval('#rate', e => e.textContent), /^\d/, 'the speed while it writes');
  await page.waitForFunction(() => document.querySelectorAll('#messages li')[1].innerText.length > 2000);
  await page.screenshot({path: `${folder}/writing.png`});
  const end = await page.$eval('#form', e => e.getBoundingClientRect().bottom);
  assert.ok(end > 640 && end <= 741, `the form is at ${end}, not at the end of the screen`);
  await page.keyboard.press('Escape');
  await idle();
  assert.ok((await texts())[1][1].length < 10000, 'stop does not end the reply');
  await page.waitForFunction(async () => !(await (await fetch('/slots')).json())[0].is_processing);
  assert.deepEqual(problems, []);
  console.log('ok page');
} finally {
  await browser.close();
}
