import { createApp, createSSRApp } from 'vue';
import { millrace } from '@millrace/client';
import { MillracePlugin } from '@millrace/client/vue';
import { server, type App as Channels } from '../channels.js';
import App from './App.vue';

// The page of server.ts is hydrated.
const create = document.getElementById('app')!.hasChildNodes() ? createSSRApp : createApp;
create(App).use(MillracePlugin, millrace<Channels>(server())).mount('#app');
