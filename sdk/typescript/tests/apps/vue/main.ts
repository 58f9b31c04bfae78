import { createApp } from 'vue';
import { millrace } from '@millrace/client';
import { MillracePlugin } from '@millrace/client/vue';
import { server, type App as Channels } from '../channels.js';
import App from './App.vue';

createApp(App).use(MillracePlugin, millrace<Channels>(server())).mount('#app');
